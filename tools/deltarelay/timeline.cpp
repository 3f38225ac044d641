#include "deltarelay/timeline.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <map>
#include <set>
#include <vector>

#include "deltarelay/terminal.h"

namespace deltarelay::command {
namespace {

using nlohmann::json;

// Pixels of the page.
constexpr double kWidth = 1200;
constexpr double kMargin = 28;
constexpr double kLabelWidth = 64;  // names of units, left of a panel
constexpr double kNoteWidth = 96;   // end of the schedule, right of a panel
constexpr double kPlotLeft = kMargin + kLabelWidth;
constexpr double kPlotWidth = kWidth - kPlotLeft - kMargin - kNoteWidth;
constexpr double kPanelHeight = 330;  // of a machine with many units
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
  double prepare = 0;  // ns before the first item, all units busy
  double end = 0;      // ns
  double busy = 0;     // ns of all units in items, carry left out
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

// Neighbours of the same work on one unit are drawn as one when they are too thin to be told apart.
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

std::string escape(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '&') {
      out += "&amp;";
    } else if (c == '<') {
      out += "&lt;";
    } else if (c == '>') {
      out += "&gt;";
    } else if (c == '"') {
      out += "&quot;";
    } else {
      out += c;
    }
  }
  return out;
}

std::string px(double value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.2f", value);
  std::string out = text.data();
  out.erase(out.find_last_not_of('0') + 1);
  if (out.back() == '.') out.pop_back();
  return out;
}

// Hue by sequence, lightness by segment: neighbours in time differ, and a sequence stays one colour.
std::string fill_of(int64_t sequence, int64_t segment) {
  constexpr std::array<int, 10> kHues = {214, 28, 152, 342, 268, 48, 188, 4, 92, 308};
  constexpr std::array<int, 4> kLightness = {40, 57, 48, 65};
  const int hue = kHues[static_cast<size_t>(sequence) % kHues.size()];
  const int saturation = 62 - 12 * static_cast<int>((static_cast<size_t>(sequence) / kHues.size()) % 3);
  const int lightness = kLightness[static_cast<size_t>(segment) % kLightness.size()];
  // HSL to RGB by hand: not every viewer of SVG knows hsl().
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

// The label of a tick: round numbers without the zeros that other durations keep.
std::string tick_label(double ns) {
  if (ns == 0) return "0";
  std::array<char, 32> text{};
  const bool milli = ns >= 1e6;
  const bool micro = ns >= 1e3;
  std::snprintf(text.data(), text.size(), "%.4g %s",
                ns / (milli   ? 1e6
                      : micro ? 1e3
                              : 1.0),
                milli   ? "ms"
                : micro ? "us"
                        : "ns");
  return text.data();
}

// A step of 1, 2, 2.5 or 5 times a power of ten that gives about eight ticks.
double tick_step(double span) {
  const double raw = span / 8;
  const double power = std::pow(10, std::floor(std::log10(raw)));
  for (const double factor : {1.0, 2.0, 2.5, 5.0})
    if (raw <= factor * power) return factor * power;
  return 10 * power;
}

std::string text_at(double x, double y, const std::string& css, const std::string& text, const char* anchor = "start") {
  return "<text x=\"" + px(x) + "\" y=\"" + px(y) + "\" class=\"" + css + "\" text-anchor=\"" + anchor + "\">" +
         escape(text) + "</text>\n";
}

std::string rect(double x, double y, double width, double height, const std::string& attributes) {
  return "<rect x=\"" + px(x) + "\" y=\"" + px(y) + "\" width=\"" + px(width) + "\" height=\"" + px(height) + "\" " +
         attributes + "/>\n";
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
    // Many units share a panel of fixed height; few get rows that can carry a label.
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
    std::string svg = "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"" + px(kWidth) + "\" height=\"" + px(height) +
                      "\" viewBox=\"0 0 " + px(kWidth) + " " + px(height) + "\">\n";
    svg += "<title>" + escape(case_line_) + "</title>\n" + style();
    svg += rect(0, 0, kWidth, height, "fill=\"#ffffff\"");
    return svg + title() + body_ + "</svg>\n";
  }

 private:
  // Of a plan that hands rows on parts of them look like segments.
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

  static std::string style() {
    return "<style>\n"
           "text { font-family: 'DejaVu Sans', 'Helvetica Neue', Helvetica, Arial, sans-serif; fill: #24292f; }\n"
           ".h1 { font-size: 21px; font-weight: bold; }\n"
           ".h2 { font-size: 14px; font-weight: bold; }\n"
           ".case { font-size: 12.5px; font-family: 'DejaVu Sans Mono', Menlo, Consolas, monospace; fill: #57606a; }\n"
           ".note { font-size: 12px; fill: #57606a; }\n"
           ".end { font-size: 12.5px; font-weight: bold; }\n"
           ".inside { font-size: 11px; fill: #ffffff; }\n"
           ".hatched { font-size: 11px; fill: #24292f; }\n"
           "</style>\n"
           "<defs>\n"
           "<pattern id=\"hatch\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\" "
           "patternTransform=\"rotate(45)\">"
           "<rect width=\"6\" height=\"6\" fill=\"#ffffff\" fill-opacity=\"0.42\"/>"
           "<rect width=\"2\" height=\"6\" fill=\"#ffffff\" fill-opacity=\"0.45\"/></pattern>\n"
           "</defs>\n";
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
    // The line may be long; a monospaced character is about 0.602 of its size wide.
    constexpr double kCharacter = 12.5 * 0.602;
    const auto fits = static_cast<size_t>((kWidth - 2 * kMargin) / kCharacter);
    std::string line = case_line_;
    if (line.size() > fits) line = line.substr(0, fits - 3) + "...";
    return text_at(kMargin, 40, "h1", head) + text_at(kMargin, 64, "note", facts) + text_at(kMargin, 88, "case", line);
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

  // The longest label that fits into a bar; empty when none does.
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
    // A white seam would eat most of a thin row.
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
    // What a wide bar is, in itself.
    if (height < 18) return;
    const std::string label = label_of(item, width);
    if (label.empty()) return;
    const char* css = item.work == "summarize" ? "hatched" : "inside";
    body_ += text_at(x + width / 2, y + height / 2 + 4, css, label, "middle");
  }

  // A stage in which all units work together.
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

}  // namespace

std::string draw_timeline(const nlohmann::json& plan, const std::string& case_line) {
  return Picture(plan, case_line).draw();
}

}  // namespace deltarelay::command
