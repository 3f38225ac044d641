# Before project(), whose own error for a machine without a compiler does not say what to install. `pip install .` shows
# this one.
foreach(language C CXX)
  if(CMAKE_${language}_COMPILER OR CMAKE_TOOLCHAIN_FILE OR DEFINED ENV{CMAKE_TOOLCHAIN_FILE})
    continue()
  endif()
  # As CMake looks for them: $CC and $CXX, which may have options behind the name, else the usual names.
  set(names cc gcc clang icx)
  set(variable CC)
  if(language STREQUAL "CXX")
    set(names c++ g++ clang++ icpx)
    set(variable CXX)
  endif()
  if(NOT "$ENV{${variable}}" STREQUAL "")
    continue()
  endif()
  find_program(found_compiler NAMES ${names} NO_CACHE)
  if(NOT found_compiler)
    message(
      FATAL_ERROR
        "deltarelay: expected a C and a C++ compiler (GCC 12 or Clang 14, or later), found none.\n"
        "Debian, Ubuntu: apt-get install g++ python3-dev\nFedora, RHEL: dnf install gcc-c++ python3-devel\n"
        "conda: conda install cxx-compiler\nA compiler elsewhere: set CC and CXX to it")
  endif()
  unset(found_compiler)
endforeach()
