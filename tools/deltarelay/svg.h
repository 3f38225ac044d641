// Parts of an SVG page that the pictures of plans share.
#pragma once
#include <string>

namespace deltarelay::command::svg {

constexpr double kWidth = 1200;  // width of a page in pixels

std::string escape(const std::string& text);
std::string px(double value);
std::string text_at(double x, double y, const std::string& css, const std::string& text, const char* anchor = "start");
std::string rect(double x, double y, double width, double height, const std::string& attributes);
// The line of a case, truncated at the edge of the page.
std::string case_at(double x, double y, const std::string& case_line);

// Label of a tick: round numbers without trailing zeros.
std::string tick_label(double ns);
// A step of 1, 2, 2.5 or 5 times a power of ten that gives about eight ticks.
double tick_step(double span);

std::string document(double height, const std::string& title, const std::string& body);

}  // namespace deltarelay::command::svg
