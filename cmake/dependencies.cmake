# Finds third-party code: the system's package, else the sources under DELTARELAY_DEPS_DIR.
#
#   hwy::hwy                      Google Highway, the only dependency of the library itself
#   GTest::gtest, GTest::gmock, GTest::gtest_main, GTest::gmock_main     tests
#   CLI11::CLI11, nlohmann_json::nlohmann_json                           tools
#
# -DDELTARELAY_SYSTEM_DEPS=OFF skips the system's packages, to test .deps. A wheel prefers the sources, so that Highway
# is inside its library and the wheel runs without an installed Highway. If there are neither, the build of a wheel
# fetches the sources.
include_guard()
set(system_deps_by_default ON)
if(SKBUILD AND EXISTS ${DELTARELAY_DEPS_DIR}/highway/hwy/highway.h)
  set(system_deps_by_default OFF)
endif()
option(DELTARELAY_SYSTEM_DEPS "Look for dependencies installed on the system before using DELTARELAY_DEPS_DIR"
       ${system_deps_by_default})
mark_as_advanced(DELTARELAY_SYSTEM_DEPS)

# Requires the sources of a dependency that the system lacks, found by one of their files. Users of `pip install` do not
# expect to install packages first.
function(dr_require_sources file what package)
  if(NOT EXISTS ${DELTARELAY_DEPS_DIR}/${file} AND SKBUILD)
    find_program(DELTARELAY_APT_GET apt-get)
    mark_as_advanced(DELTARELAY_APT_GET)
    set(fetched ${PROJECT_BINARY_DIR}/deps)
    if(DELTARELAY_APT_GET AND NOT EXISTS ${fetched})
      message(STATUS "${what} is not on this machine: fetching the sources of dependencies (scripts/fetch_deps.sh)")
      execute_process(COMMAND ${PROJECT_SOURCE_DIR}/scripts/fetch_deps.sh ${fetched})
      set(DELTARELAY_DEPS_DIR ${fetched} CACHE PATH "" FORCE)
    endif()
  endif()
  if(NOT EXISTS ${DELTARELAY_DEPS_DIR}/${file})
    message(
      FATAL_ERROR
        "${what} was not found: neither as a system package (Debian: apt-get install ${package}) nor as sources in "
        "${DELTARELAY_DEPS_DIR} (scripts/fetch_deps.sh puts them there)")
  endif()
endfunction()

# A static Highway with the few files that the library uses, with hidden symbols.
function(dr_hwy_from_sources dir)
  add_library(dr_hwy STATIC ${dir}/hwy/aligned_allocator.cc ${dir}/hwy/per_target.cc ${dir}/hwy/targets.cc)
  target_include_directories(dr_hwy SYSTEM PUBLIC $<BUILD_INTERFACE:${dir}>)
  target_compile_definitions(dr_hwy PUBLIC HWY_STATIC_DEFINE)
  target_compile_features(dr_hwy PUBLIC cxx_std_17)
  # Its sources were not written to be compiled together.
  set_target_properties(dr_hwy PROPERTIES POSITION_INDEPENDENT_CODE ON CXX_VISIBILITY_PRESET hidden
                                          VISIBILITY_INLINES_HIDDEN ON UNITY_BUILD OFF)
  add_library(hwy::hwy ALIAS dr_hwy)
endfunction()

function(dr_gtest_from_sources dir)
  find_package(Threads REQUIRED)
  foreach(name gtest gmock)
    string(REPLACE "gtest" "googletest" part ${name})
    string(REPLACE "gmock" "googlemock" part ${part})
    add_library(dr_${name} STATIC ${dir}/${part}/src/${name}-all.cc)
    target_include_directories(dr_${name} SYSTEM PUBLIC ${dir}/${part}/include PRIVATE ${dir}/${part})
    target_compile_features(dr_${name} PUBLIC cxx_std_14)
    target_link_libraries(dr_${name} PUBLIC Threads::Threads)
    add_library(dr_${name}_main STATIC ${dir}/${part}/src/${name}_main.cc)
    target_link_libraries(dr_${name}_main PUBLIC dr_${name})
    add_library(GTest::${name} ALIAS dr_${name})
    add_library(GTest::${name}_main ALIAS dr_${name}_main)
  endforeach()
  target_link_libraries(dr_gmock PUBLIC dr_gtest)
endfunction()

function(dr_headers_only target dir)
  string(MAKE_C_IDENTIFIER "dr_${target}" name)
  add_library(${name} INTERFACE)
  target_include_directories(${name} SYSTEM INTERFACE ${dir})
  add_library(${target} ALIAS ${name})
endfunction()

macro(dr_find what)
  if(DELTARELAY_SYSTEM_DEPS)
    find_package(${what} QUIET)
  endif()
endmacro()

if(DELTARELAY_SYSTEM_DEPS)
  include(${CMAKE_CURRENT_LIST_DIR}/find_highway.cmake)
endif()
if(NOT TARGET hwy::hwy)
  dr_require_sources(highway/hwy/highway.h "Google Highway" libhwy-dev)
  dr_hwy_from_sources(${DELTARELAY_DEPS_DIR}/highway)
endif()

if(DELTARELAY_BUILD_TESTS)
  dr_find(GTest)
  if(NOT TARGET GTest::gmock)
    dr_require_sources(googletest/googletest/src/gtest-all.cc GoogleTest "libgtest-dev libgmock-dev")
    dr_gtest_from_sources(${DELTARELAY_DEPS_DIR}/googletest)
  endif()
endif()

if(DELTARELAY_BUILD_TOOLS)
  dr_find(CLI11)
  if(NOT TARGET CLI11::CLI11)
    dr_require_sources(cli11/CLI/CLI.hpp CLI11 libcli11-dev)
    dr_headers_only(CLI11::CLI11 ${DELTARELAY_DEPS_DIR}/cli11)
  endif()
  dr_find(nlohmann_json)
  if(NOT TARGET nlohmann_json::nlohmann_json)
    dr_require_sources(nlohmann_json/nlohmann/json.hpp nlohmann-json nlohmann-json3-dev)
    dr_headers_only(nlohmann_json::nlohmann_json ${DELTARELAY_DEPS_DIR}/nlohmann_json)
  endif()
endif()
