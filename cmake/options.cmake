# All options of the build, with their help. A project that embeds this one gets the library only.
option(DELTARELAY_BUILD_TOOLS "Build the deltarelay command and the libraries beside it" ${PROJECT_IS_TOP_LEVEL})
# By default the library is shared. Libraries of an embedding project keep their kind.
if(PROJECT_IS_TOP_LEVEL)
  option(BUILD_SHARED_LIBS "Build a shared library; OFF: a static one" ON)
elseif(NOT DEFINED BUILD_SHARED_LIBS)
  set(BUILD_SHARED_LIBS ON)
endif()
set(tests_by_default OFF)
if(PROJECT_IS_TOP_LEVEL AND BUILD_SHARED_LIBS)
  set(tests_by_default ON)
endif()
option(DELTARELAY_BUILD_TESTS "Build the tests (needs GoogleTest and a shared library; also builds the tools)"
       ${tests_by_default})
set(DELTARELAY_BUILD_PYTHON
    OFF
    CACHE STRING "Build the Python package: ON, OFF, or CUDA for deltarelay-cuda (docs/installing.md)")
set_property(CACHE DELTARELAY_BUILD_PYTHON PROPERTY STRINGS ON OFF CUDA)
option(DELTARELAY_WERROR "Treat compiler warnings as errors" OFF)
set(DELTARELAY_SANITIZE
    ""
    CACHE STRING "Sanitizers to build with: address (with undefined behaviour), thread, or empty")
set_property(CACHE DELTARELAY_SANITIZE PROPERTY STRINGS "" address thread)
set(DELTARELAY_CUDA
    AUTO
    CACHE STRING "Build the CUDA backends: AUTO (if a toolkit of 12.4 or later is found), ON or OFF")
set_property(CACHE DELTARELAY_CUDA PROPERTY STRINGS AUTO ON OFF)
# Machine code for current GPUs, and virtual code for later ones: 8.x and later, and features of 12.0.
set(DELTARELAY_CUDA_ARCHITECTURES "80-real;90-real;100-real;120-real;80-virtual;120-virtual" CACHE STRING
    "Architectures of the portable CUDA kernels, as CMake lists them (the kernels for Hopper are always built for 90a)")
option(DELTARELAY_CUDA_SMOKE "Also compile some portable CUDA kernels for every architecture, as a check" OFF)
option(DELTARELAY_CUDA_QUICK "Compile CUDA kernels in a third of the time, to run slower: for hosts without a GPU" OFF)
option(DELTARELAY_LIBFUZZER
       "Also build the fuzz targets for libFuzzer, with coverage (Clang and DELTARELAY_SANITIZE=address)" OFF)
set(DELTARELAY_DEPS_DIR "${PROJECT_SOURCE_DIR}/.deps" CACHE PATH
    "Sources of dependencies for hosts without their packages (scripts/fetch_deps.sh fills it)")

# The tests load the library at run time and read its symbol table. A static library of the same objects is built as
# well.
if(DELTARELAY_BUILD_TESTS AND NOT BUILD_SHARED_LIBS)
  message(FATAL_ERROR "DELTARELAY_BUILD_TESTS: expected BUILD_SHARED_LIBS=ON beside it, found ${BUILD_SHARED_LIBS}")
endif()
# The tests use the tools, so they cannot be built without them.
if(DELTARELAY_BUILD_TESTS AND NOT DELTARELAY_BUILD_TOOLS)
  message(STATUS "DELTARELAY_BUILD_TESTS needs the tools: DELTARELAY_BUILD_TOOLS is turned on")
  set(DELTARELAY_BUILD_TOOLS ON CACHE BOOL "Build the deltarelay command and the libraries beside it" FORCE)
endif()

if(PROJECT_IS_TOP_LEVEL)
  if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
    set(CMAKE_BUILD_TYPE Release CACHE STRING "Release, RelWithDebInfo or Debug" FORCE)
    set_property(CACHE CMAKE_BUILD_TYPE PROPERTY STRINGS Release RelWithDebInfo Debug)
  endif()
  set(CMAKE_EXPORT_COMPILE_COMMANDS ON)  # for clang-tidy
  find_program(DELTARELAY_CCACHE ccache)
  if(DELTARELAY_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
    set(CMAKE_C_COMPILER_LAUNCHER ${DELTARELAY_CCACHE})
    set(CMAKE_CXX_COMPILER_LAUNCHER ${DELTARELAY_CCACHE})
    set(CMAKE_CUDA_COMPILER_LAUNCHER ${DELTARELAY_CCACHE})
  endif()
  if(NOT CMAKE_RUNTIME_OUTPUT_DIRECTORY)
    set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
  endif()
endif()
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_C_STANDARD 11)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_C_EXTENSIONS OFF)

if(DELTARELAY_LIBFUZZER)
  if(NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    message(FATAL_ERROR "DELTARELAY_LIBFUZZER: expected Clang, found ${CMAKE_CXX_COMPILER_ID}")
  endif()
  add_compile_options(-fsanitize=fuzzer-no-link)
endif()

# Tests and the command need no speed: all timed code is in the library. The checks of a sanitizer are the same without
# optimisation and compile in half the time.
set(DELTARELAY_UNTIMED_FLAGS $<$<NOT:$<CONFIG:Debug>>:-O1>)
if(DELTARELAY_SANITIZE)
  set(DELTARELAY_UNTIMED_FLAGS -O0)
endif()

# Sanitizers apply to the whole build: a part without instrumentation hides races and gives false reports.
if(DELTARELAY_SANITIZE STREQUAL "address")
  add_compile_options(-fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer -g1 -UNDEBUG)
  add_link_options(-fsanitize=address,undefined)
elseif(DELTARELAY_SANITIZE STREQUAL "thread")
  add_compile_options(-fsanitize=thread -fno-omit-frame-pointer -g1 -UNDEBUG)
  add_link_options(-fsanitize=thread)
elseif(NOT DELTARELAY_SANITIZE STREQUAL "")
  message(FATAL_ERROR "DELTARELAY_SANITIZE: expected address, thread or nothing, found '${DELTARELAY_SANITIZE}'")
endif()
