// Text in JSON form, written in order; commas and escapes are its business.
#pragma once
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace deltarelay {

class JsonWriter {
 public:
  JsonWriter& object() { return open('{'); }
  JsonWriter& array() { return open('['); }
  JsonWriter& end_object() { return close('}'); }
  JsonWriter& end_array() { return close(']'); }
  JsonWriter& key(std::string_view name) {
    separate();
    quote(name);
    text_ += ':';
    fresh_ = true;
    return *this;
  }
  JsonWriter& value(std::string_view text) {
    separate();
    quote(text);
    return *this;
  }
  JsonWriter& value(int64_t number) {
    separate();
    char digits[24];
    text_.append(digits, std::to_chars(digits, digits + sizeof digits, number).ptr);
    return *this;
  }
  JsonWriter& value(bool flag) {
    separate();
    text_ += flag ? "true" : "false";
    return *this;
  }
  template <class T>
  JsonWriter& member(std::string_view name, const T& content) {
    key(name);
    if constexpr (std::is_same_v<T, bool>) {
      return value(content);
    } else if constexpr (std::is_integral_v<T>) {
      return value(static_cast<int64_t>(content));
    } else {
      return value(std::string_view(content));
    }
  }
  std::string take() { return std::move(text_); }

 private:
  JsonWriter& open(char bracket) {
    separate();
    text_ += bracket;
    fresh_ = true;
    return *this;
  }
  JsonWriter& close(char bracket) {
    text_ += bracket;
    fresh_ = false;
    return *this;
  }
  void separate() {
    if (!fresh_) text_ += ',';
    fresh_ = false;
  }
  void quote(std::string_view text) {
    text_ += '"';
    for (const char c : text) {
      if (c == '"' || c == '\\') {
        text_ += '\\';
        text_ += c;
      } else if (static_cast<unsigned char>(c) < 0x20) {
        char code[8];
        std::snprintf(code, sizeof code, "\\u%04x", static_cast<unsigned>(static_cast<unsigned char>(c)));
        text_ += code;
      } else {
        text_ += c;
      }
    }
    text_ += '"';
  }
  std::string text_;
  bool fresh_ = true;  // nothing since the last bracket or key
};

}  // namespace deltarelay
