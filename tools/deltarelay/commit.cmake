# Writes OUTPUT, a header with the commit of SOURCE. Changes the file only if the commit has changed. Runs at every
# build.
cmake_minimum_required(VERSION 3.24)
execute_process(
  COMMAND git describe --always --dirty --abbrev=12 --exclude=*
  WORKING_DIRECTORY ${SOURCE}
  OUTPUT_VARIABLE commit
  ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
if(NOT commit)
  set(commit "unknown")
endif()
file(CONFIGURE OUTPUT ${OUTPUT} CONTENT "#pragma once
// Generated at build time: the commit that results are labelled with.
namespace deltarelay::command {
inline constexpr const char* kCommit = \"@commit@\";
}
" @ONLY)
