// The header, a C program and the shared library agree on the list of functions.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <fstream>
#include <regex>
#include <set>
#include <sstream>
#include <string>

#include "deltarelay/deltarelay.h"
#include "every_symbol.h"

namespace {

std::set<std::string> named_in_c() {
  int count = 0;
  const dr_symbol* symbols = dr_symbols_named_in_c(&count);
  std::set<std::string> names;
  for (int i = 0; i < count; ++i) {
    EXPECT_NE(symbols[i].address, nullptr);
    names.insert(symbols[i].name);
  }
  return names;
}

std::set<std::string> declared_in_header() {
  std::ifstream file(DELTARELAY_HEADER);
  std::stringstream text;
  text << file.rdbuf();
  const std::string header = text.str();
  const std::regex declaration(R"(DR_API [^;]*?(dr_\w+)\()");
  std::set<std::string> names;
  for (std::sregex_iterator it(header.begin(), header.end(), declaration), end; it != end; ++it) names.insert((*it)[1]);
  return names;
}

TEST(Symbols, TheHeaderDeclaresWhatCProgramsCall) {
  EXPECT_GT(named_in_c().size(), 15u);
  EXPECT_EQ(declared_in_header(), named_in_c());
}

TEST(Symbols, TheLoadedLibraryHasThem) {
  for (const std::string& name : named_in_c()) EXPECT_NE(dlsym(RTLD_DEFAULT, name.c_str()), nullptr) << name;
  EXPECT_EQ(dr_version(), DR_VERSION);
}

}  // namespace
