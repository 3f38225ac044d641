#include "deltarelay/timeline.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "deltarelay/svg.h"
#include "deltarelay/terminal.h"

namespace deltarelay::command {
namespace {

using nlohmann::json;
using svg::escape;
using svg::kWidth;
using svg::px;
using svg::rect;
using svg::text_at;
using svg::tick_label;
using svg::tick_step;

// Sizes on the page in pixels.
constexpr double kMargin = 28;
constexpr double kLabelWidth = 64;  // names of units, left of a panel
constexpr double kNoteWidth = 96;   // end of the schedule, right of a panel
constexpr double kPlotLeft = kMargin + kLabelWidth;
constexpr double kPlotWidth = kWidth - kPlotLeft - kMargin - kNoteWidth;
constexpr double kPanelHeight = 330;  // for a machine with many units
constexpr double kMaxUnitHeight = 44;
constexpr double kTitleHeight = 108;
constexpr double kPanelTitle = 34;
constexpr double kPanelGap = 26;
constexpr double kAxisHeight = 44;
constexpr double kLegendRow = 24;
constexpr size_t kLegendSequences = 8;

constexpr const char* kPrepareFill = "fill=\"#57606a\" fill-opacity=\"0.35\"";
constexpr const char* kCarryFill = "fill=\"#24292f\" fill-opacity=\"0.62\"";

struct Item {
  int64_t unit = 0;
  double begin = 0;  // ns
  double end = 0;
  int64_t sequence = 0;
  int64_t segment = 0;
  int64_t head = 0;
  int64_t tile = 0;  // of the head's value columns
  std::string work;  // emit, summarize, carry
};

struct Schedule {
  std::vector<Item> items;
  double prepare = 0;  // ns before the first item, with all units busy
  double end = 0;      // ns
  double busy = 0;     // ns of all units in items, without carry
  double carry_begin = 0;
  double carry_end = 0;
  int64_t tiles = 1;     // value tiles of a head
  int64_t segments = 0;  // rows: distinct (sequence, segment)
};

Schedule read_schedule(const json& all, const char* name) {
  const json& list = all.at(name);
  Schedule schedule;
  schedule.prepare = all.value("prepare_ns", 0.0);
  std::set<std::pair<int64_t, int64_t>> segments;
  bool carry = false;
  for (const json& entry : list) {
    Item item;
    item.unit = entry.value("unit", int64_t{0});
    item.begin = entry.value("start_ns", 0.0);
    item.end = entry.value("end_ns", 0.0);
    item.sequence = entry.value("sequence", int64_t{0});
    item.segment = entry.value("segment", int64_t{0});
    item.head = entry.value("head", int64_t{0});
    item.tile = entry.value("tile", int64_t{0});
    item.work = entry.value("work", std::string("emit"));
    schedule.tiles = std::max(schedule.tiles, item.tile + 1);
    schedule.end = std::max(schedule.end, item.end);
    if (item.work == "carry") {
      schedule.carry_begin = carry ? std::min(schedule.carry_begin, item.begin) : item.begin;
      schedule.carry_end = std::max(schedule.carry_end, item.end);
      carry = true;
    } else {
      schedule.busy += item.end - item.begin;
      segments.insert({item.sequence, item.segment});
    }
    schedule.items.push_back(std::move(item));
  }
  schedule.segments = static_cast<int64_t>(segments.size());
  return schedule;
}

// Draws neighbouring items of the same work on one unit as one if they are too thin to distinguish.
std::vector<Item> merge_thin(std::vector<Item> items, double ns_per_pixel) {
  std::stable_sort(items.begin(), items.end(),
                   [](const Item& a, const Item& b) { return a.unit != b.unit ? a.unit < b.unit : a.begin < b.begin; });
  std::vector<Item> merged;
  for (Item& item : items) {
    if (!merged.empty()) {
      Item& last = merged.back();
      const bool same = last.unit == item.unit && last.sequence == item.sequence && last.segment == item.segment &&
                        last.work == item.work;
      if (same && item.begin - last.end < ns_per_pixel && item.end - item.begin < 3 * ns_per_pixel) {
        last.end = std::max(last.end, item.end);
        continue;
      }
    }
    merged.push_back(std::move(item));
  }
  return merged;
}

// Hue by sequence, lightness by segment: neighbours in time differ, and a sequence keeps its colour.
std::string fill_of(int64_t sequence, int64_t segment) {
  constexpr std::array<int, 10> kHues = {214, 28, 152, 342, 268, 48, 188, 4, 92, 308};
  constexpr std::array<int, 4> kLightness = {40, 57, 48, 65};
  const int hue = kHues[static_cast<size_t>(sequence) % kHues.size()];
  const int saturation = 62 - 12 * static_cast<int>((static_cast<size_t>(sequence) / kHues.size()) % 3);
  const int lightness = kLightness[static_cast<size_t>(segment) % kLightness.size()];
  // HSL to RGB by hand, because not every SVG viewer supports hsl().
  const double l = lightness / 100.0;
  const double amplitude = saturation / 100.0 * std::min(l, 1 - l);
  const auto channel = [&](int n) {
    const double k = std::fmod(n + hue / 30.0, 12);
    return static_cast<int>(std::lround(255 * (l - amplitude * std::max(-1.0, std::min({k - 3, 9 - k, 1.0})))));
  };
  std::array<char, 16> text{};
  std::snprintf(text.data(), text.size(), "#%02x%02x%02x", channel(0), channel(8), channel(4));
  return text.data();
}

class Picture {
 public:
  Picture(const json& plan, std::string case_line)
      : case_line_(std::move(case_line)),
        units_(std::max<int64_t>(1, plan.at("schedule").value("units", int64_t{1}))),
        split_(read_schedule(plan.at("schedule"), "split")),
        unsplit_(read_schedule(plan.at("schedule"), "unsplit")) {
    if (plan.contains("device") && plan["device"].is_object()) device_ = plan["device"].value("name", std::string());
    backend_ = plan.value("backend", std::string());
    relayed_ = plan.value("relay_shares", 0) > 0;
    end_ = std::max({split_.end, unsplit_.end, 1.0});
    tiles_ = std::max(split_.tiles, unsplit_.tiles);
    // Many units share a panel of fixed height. Few units get rows that are high enough for a label.
    unit_height_ = std::min(kMaxUnitHeight, kPanelHeight / static_cast<double>(units_));
  }

  std::string draw() {
    double y = kTitleHeight;
    y = draw_panel(y, split_,
                   relayed_ ? "rows handed on"
                   : cut()  ? "split into segments"
                            : "the plan: nothing is cut",
                   true);
    if (compares()) y = draw_panel(y + kPanelGap, unsplit_, other_way() + ", for comparison", false);
    y = draw_axis(y);
    y = draw_legend(y + 8);
    const double height = y + kMargin - 8;
    return svg::document(height, case_line_, title() + body_);
  }

 private:
  // In a plan that hands rows on, parts of rows look like segments.
  bool compares() const { return cut() || relayed_; }
  std::string other_way() const { return relayed_ ? "in rounds" : "unsplit"; }
  bool cut() const {
    return !relayed_ &&
           std::any_of(split_.items.begin(), split_.items.end(), [](const Item& item) { return item.segment > 0; });
  }
  double x_of(double ns) const { return kPlotLeft + ns / end_ * kPlotWidth; }
  double panel_height() const { return unit_height_ * static_cast<double>(units_); }
  double use_of(const Schedule& schedule) const {
    const auto units = static_cast<double>(units_);
    return schedule.end > 0 ? (schedule.busy + schedule.prepare * units) / (schedule.end * units) : 0;
  }

  std::string title() const {
    const double gain = unsplit_.end / std::max(1.0, split_.end);
    std::string head = "DeltaRelay plan: unsplit";
    if (compares())
      head = "DeltaRelay plan: " + (gain >= 1 ? significant(gain) + "x faster" : significant(1 / gain) + "x slower") +
             " than " + other_way() + ", predicted";
    std::string facts = "predicted " + duration(split_.end);
    if (compares()) facts += ", " + other_way() + " " + duration(unsplit_.end);
    facts += "  ·  " + thousands(units_) + (units_ == 1 ? " unit" : " units");
    if (!device_.empty()) facts += " of " + device_;
    if (!backend_.empty()) facts += "  ·  backend " + backend_;
    return text_at(kMargin, 40, "h1", head) + text_at(kMargin, 64, "note", facts) +
           svg::case_at(kMargin, 88, case_line_);
  }

  double draw_panel(double y, const Schedule& schedule, const std::string& name, bool main) {
    std::string facts = std::to_string(static_cast<int>(std::lround(100 * use_of(schedule)))) + " % of unit time busy";
    if (main && cut()) facts = thousands(schedule.segments) + " segments  ·  " + facts;
    body_ += text_at(kPlotLeft, y + 20, "h2", name);
    body_ += text_at(kPlotLeft + kPlotWidth, y + 20, "note", facts, "end");
    const double top = y + kPanelTitle;
    const double height = panel_height();
    body_ += rect(kPlotLeft, top, kPlotWidth, height, "fill=\"#f3f5f7\"");
    draw_grid(top, height);
    draw_units(top);
    for (const Item& item : merge_thin(schedule.items, end_ / kPlotWidth)) draw_item(top, item);
    draw_band(top, height, "prepare", 0, schedule.prepare, kPrepareFill);
    draw_band(top, height, "carry", schedule.carry_begin, schedule.carry_end, kCarryFill);
    draw_end(top, height, schedule.end);
    return top + height;
  }

  void draw_grid(double top, double height) {
    const double step = tick_step(end_);
    for (double ns = 0; ns <= end_ * 1.0001; ns += step)
      body_ += "<line x1=\"" + px(x_of(ns)) + "\" x2=\"" + px(x_of(ns)) + "\" y1=\"" + px(top) + "\" y2=\"" +
               px(top + height) + "\" stroke=\"#d8dee4\" stroke-width=\"1\"/>\n";
  }

  void draw_units(double top) {
    const int64_t step = units_ <= 16 ? 1 : units_ <= 64 ? 8 : 16;
    const char* word = device_ == "cpu" || device_.empty() ? "thread" : "SM";
    for (int64_t unit = 0; unit < units_; unit += step) {
      const double middle = top + (static_cast<double>(unit) + 0.5) * unit_height_;
      body_ += text_at(kPlotLeft - 8, middle + 4, "note", std::string(word) + " " + std::to_string(unit), "end");
    }
  }

  // The longest label that fits a bar; empty if none fits.
  std::string label_of(const Item& item, double width) const {
    const std::string segment = "seq " + std::to_string(item.sequence) + " seg " + std::to_string(item.segment);
    const std::string tile = tiles_ > 1 ? " tile " + std::to_string(item.tile) : "";
    const std::string with_tile = segment + tile;
    const std::string with_head = segment + " head " + std::to_string(item.head);
    const std::string full = with_head + tile;
    const std::string brief = std::to_string(item.sequence) + "." + std::to_string(item.segment);
    constexpr double kCharacter = 6.4;
    for (const std::string& label : {full, with_tile, segment, brief})
      if (width >= static_cast<double>(label.size()) * kCharacter + 6) return label;
    return "";
  }

  void draw_item(double top, const Item& item) {
    if (item.work == "carry") return;
    const double gap = unit_height_ >= 8 ? 1.5 : unit_height_ >= 4 ? 0.5 : unit_height_ >= 2 ? 0.15 : 0;
    const double y = top + static_cast<double>(item.unit) * unit_height_ + gap;
    const double x = x_of(item.begin);
    const double width = std::max(0.4, x_of(item.end) - x);
    const double height = std::max(0.8, unit_height_ - 2 * gap);
    const bool rounded = height > 10 && width > 8;
    // A white seam would hide most of a thin row.
    const bool seam = height > 6 && width > 3;
    const std::string outline =
        std::string(seam ? " stroke=\"#ffffff\" stroke-width=\"0.6\"" : "") + (rounded ? " rx=\"2\"" : "");
    body_ += "<g><title>" +
             escape(item.work + ": sequence " + std::to_string(item.sequence) + ", segment " +
                    std::to_string(item.segment) + ", head " + std::to_string(item.head) + ", value tile " +
                    std::to_string(item.tile) + ", " + duration(item.begin) + " to " + duration(item.end)) +
             "</title>";
    body_ += rect(x, y, width, height, "fill=\"" + fill_of(item.sequence, item.segment) + "\"" + outline);
    if (item.work == "summarize") body_ += rect(x, y, width, height, "fill=\"url(#hatch)\"" + outline);
    body_ += "</g>\n";
    // Label inside a wide bar.
    if (height < 18) return;
    const std::string label = label_of(item, width);
    if (label.empty()) return;
    const char* css = item.work == "summarize" ? "hatched" : "inside";
    body_ += text_at(x + width / 2, y + height / 2 + 4, css, label, "middle");
  }

  // Draws a stage in which all units work together.
  void draw_band(double top, double height, const std::string& stage, double begin, double end, const char* fill) {
    if (end <= begin) return;
    const double x = x_of(begin);
    const double width = std::max(1.5, x_of(end) - x);
    body_ += "<g><title>" + escape(stage + ": " + duration(begin) + " to " + duration(end)) + "</title>" +
             rect(x, top, width, height, fill) + "</g>\n";
  }

  void draw_end(double top, double height, double end) {
    const double x = x_of(end);
    body_ += "<line x1=\"" + px(x) + "\" x2=\"" + px(x) + "\" y1=\"" + px(top - 4) + "\" y2=\"" + px(top + height + 4) +
             "\" stroke=\"#24292f\" stroke-width=\"1.5\" stroke-dasharray=\"4 3\"/>\n";
    body_ += text_at(x + 7, top + height / 2 + 4, "end", duration(end));
  }

  double draw_axis(double y) {
    const double step = tick_step(end_);
    for (double ns = 0; ns <= end_ * 1.0001; ns += step) {
      body_ += "<line x1=\"" + px(x_of(ns)) + "\" x2=\"" + px(x_of(ns)) + "\" y1=\"" + px(y) + "\" y2=\"" + px(y + 5) +
               "\" stroke=\"#8c959f\"/>\n";
      body_ += text_at(x_of(ns), y + 20, "note", tick_label(ns), "middle");
    }
    return y + kAxisHeight;
  }

  double draw_legend(double y) {
    double x = kPlotLeft;
    const auto entry = [&](const std::string& swatch, const std::string& name, double width) {
      body_ += swatch + text_at(x + 26, y + 11, "note", name);
      x += width;
    };
    const auto next_row = [&] {
      y += kLegendRow;
      x = kPlotLeft;
    };
    const auto swatch = [&](const std::string& attributes) { return rect(x, y, 18, 13, attributes + " rx=\"2\""); };
    std::map<int64_t, bool> sequences;
    for (const Item& item : split_.items) sequences[item.sequence] = true;
    if (split_.prepare > 0) entry(swatch(kPrepareFill), "prepare: every chunk alone", 214);
    entry(swatch("fill=\"" + fill_of(0, 0) + "\""), "emit: outputs", 136);
    if (cut()) {
      entry(swatch("fill=\"" + fill_of(0, 0) + "\"") + swatch("fill=\"url(#hatch)\""),
            "summarize: transition of a segment", 270);
      entry(swatch(kCarryFill), "carry: state from segment to segment", 280);
      entry(swatch("fill=\"#f3f5f7\" stroke=\"#d8dee4\""), "idle", 78);
      if (split_.prepare > 0) next_row();  // five stages fill a row
      body_ += text_at(x, y + 11, "note", "one hue a sequence, shades for its segments");
    } else if (relayed_) {
      entry(swatch("fill=\"#f3f5f7\" stroke=\"#d8dee4\""), "idle", 78);
      body_ += text_at(x, y + 11, "note", "one hue a sequence; lighter: taken over from another unit");
    }
    next_row();
    size_t shown = 0;
    for (const auto& [sequence, ignored] : sequences) {
      if (shown++ == kLegendSequences) {
        body_ +=
            text_at(x, y + 11, "note",
                    "and " + thousands(static_cast<int64_t>(sequences.size() - kLegendSequences)) + " more sequences");
        break;
      }
      entry(swatch("fill=\"" + fill_of(sequence, 0) + "\""), "sequence " + std::to_string(sequence), 118);
    }
    return y + kLegendRow;
  }

  std::string case_line_;
  int64_t units_;
  Schedule split_;
  Schedule unsplit_;
  std::string device_;
  std::string backend_;
  bool relayed_ = false;
  int64_t tiles_ = 1;
  double end_ = 1;
  double unit_height_ = 1;
  std::string body_;
};

// For a plan whose schedule is too long to list: draws its stages, and below them the call without cuts.
std::string draw_stages(const json& plan, const std::string& case_line) {
  const double total = plan.value("predicted_ns", 0.0);
  const double unsplit = plan.value("unsplit_ns", 0.0);
  const double end = std::max({total, unsplit, 1.0});
  constexpr double kLabels = 150;  // names of stages, left of their bars
  constexpr double kLeft = kMargin + kLabels;
  constexpr double kSpan = kWidth - kLeft - kMargin - kNoteWidth - 140;
  const auto x_of = [&](double ns) { return kLeft + ns / end * kSpan; };
  std::string body = text_at(kMargin, 40, "h1", "DeltaRelay plan: stages, predicted");
  std::string facts = "predicted " + duration(total) + ", with nothing cut " + duration(unsplit) + "  ·  backend " +
                      plan.value("backend", std::string());
  if (plan.contains("schedule_omitted"))
    facts += "  ·  items are not drawn: " + plan["schedule_omitted"].get<std::string>();
  body += text_at(kMargin, 64, "note", facts) + svg::case_at(kMargin, 88, case_line);
  double y = kTitleHeight;
  const auto bar = [&](const std::string& name, double begin, double ns, const std::string& note, const char* fill) {
    body += text_at(kLeft - 10, y + 19, "note", name, "end");
    body += rect(x_of(begin), y, std::max(1.0, x_of(begin + ns) - x_of(begin)), 28, fill);
    body += text_at(x_of(begin + ns) + 8, y + 19, "note", note);
    y += 38;
  };
  double begin = 0;
  for (const json& step : plan.at("steps")) {
    const double ns = step.value("predicted_ns", 0.0);
    if (ns == 0) continue;  // not predicted: what belongs to no row, reports
    bar(step.value("stage", std::string()), begin, ns,
        duration(ns) + ", " + thousands(step.value("items", int64_t{0})) + " items",
        ("fill=\"" + fill_of(0, 0) + "\"").c_str());
    begin += ns;
  }
  bar("nothing cut", 0, unsplit, duration(unsplit), kPrepareFill);
  const double step = tick_step(end);
  for (double ns = 0; ns <= end * 1.0001; ns += step)
    body += text_at(x_of(ns), y + 14, "note", tick_label(ns), "middle");
  return svg::document(y + kAxisHeight, case_line, body);
}

}  // namespace

std::string draw_timeline(const nlohmann::json& plan, const std::string& case_line) {
  if (plan.contains("schedule")) return Picture(plan, case_line).draw();
  if (!plan.at("problem").at("lengths_known").get<bool>())
    throw NothingToDraw(
        "--svg: expected lengths that are known when the plan is made, found lengths=execute: without lengths there is "
        "no "
        "schedule to draw");
  return draw_stages(plan, case_line);
}

}  // namespace deltarelay::command
