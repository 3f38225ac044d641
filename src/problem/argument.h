// Name of an argument. The text is built only for an error message, because every plan pays for validation.
#pragma once
#include <string>
#include <string_view>

namespace deltarelay {

struct Argument {
  std::string_view owner;  // "problem.initial"
  std::string_view field;  // "layout", or empty

  constexpr Argument(const char* name)
      : owner(name) {}  // NOLINT(google-explicit-constructor): names are passed as such
  constexpr Argument(std::string_view owner_name, std::string_view field_name) : owner(owner_name), field(field_name) {}

  std::string name() const {
    std::string text(owner);
    if (!field.empty()) text.append(".").append(field);
    return text;
  }
};

}  // namespace deltarelay
