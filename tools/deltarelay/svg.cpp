#include "deltarelay/svg.h"

#include <array>
#include <cmath>
#include <cstdio>

namespace deltarelay::command::svg {

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

std::string text_at(double x, double y, const std::string& css, const std::string& text, const char* anchor) {
  return "<text x=\"" + px(x) + "\" y=\"" + px(y) + "\" class=\"" + css + "\" text-anchor=\"" + anchor + "\">" +
         escape(text) + "</text>\n";
}

std::string rect(double x, double y, double width, double height, const std::string& attributes) {
  return "<rect x=\"" + px(x) + "\" y=\"" + px(y) + "\" width=\"" + px(width) + "\" height=\"" + px(height) + "\" " +
         attributes + "/>\n";
}

namespace {
std::string style() {
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
}  // namespace

// Label of a tick: round numbers without trailing zeros.
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

std::string document(double height, const std::string& title, const std::string& body) {
  std::string text = "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"" + px(kWidth) + "\" height=\"" + px(height) +
                     "\" viewBox=\"0 0 " + px(kWidth) + " " + px(height) + "\">\n";
  text += "<title>" + escape(title) + "</title>\n" + style();
  text += rect(0, 0, kWidth, height, "fill=\"#ffffff\"");
  return text + body + "</svg>\n";
}

std::string case_at(double x, double y, const std::string& case_line) {
  // The line may be too long. A monospaced character is about 0.602 of its size wide.
  constexpr double kCharacter = 12.5 * 0.602;
  const auto fits = static_cast<size_t>((kWidth - 2 * x) / kCharacter);
  return text_at(x, y, "case", case_line.size() > fits ? case_line.substr(0, fits - 3) + "..." : case_line);
}

}  // namespace deltarelay::command::svg
