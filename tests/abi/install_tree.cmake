# Installs the build, moves the tree, and uses it from outside: with find_package and with pkg-config, from C++ and from
# C. KIND is shared (the built library) or static (a library of the same objects, made for this test).
function(run what)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "${what}: expected success, found ${status}\n${output}")
  endif()
  set(output "${output}" PARENT_SCOPE)
endfunction()

function(expect_file file)
  if(NOT EXISTS ${file})
    message(FATAL_ERROR "install tree: expected ${file}, found nothing")
  endif()
endfunction()

# The programs must run, and must need the shared library exactly if that was installed.
function(check_programs folder)
  foreach(program ${ARGN})
    run("${folder}/${program}" ${folder}/${program})
    if(program MATCHES "^forward" AND NOT output MATCHES "checksum [0-9]+\\.[0-9]+")
      message(FATAL_ERROR "${program}: expected a checksum, found\n${output}")
    endif()
    run("${READELF}" ${READELF} -d ${folder}/${program})
    set(found static)
    if(output MATCHES "libdeltarelay")
      set(found shared)
    endif()
    if(NOT found STREQUAL KIND)
      message(FATAL_ERROR "${program}: expected the ${KIND} library in it, found the ${found} one\n${output}")
    endif()
  endforeach()
endfunction()

# The compiler defaults to C++17, so the package itself must request C++20.
function(build_project source folder)
  run("find_package: configure ${source}"
      ${CMAKE_COMMAND} -S ${source} -B ${folder} -G ${GENERATOR} -DCMAKE_C_COMPILER=${CC} -DCMAKE_CXX_COMPILER=${CXX}
      -DCMAKE_CXX_FLAGS=-std=gnu++17 -DCMAKE_PREFIX_PATH=${prefix} -DCMAKE_BUILD_TYPE=Release)
  run("find_package: build ${source}" ${CMAKE_COMMAND} --build ${folder})
endfunction()

file(REMOVE_RECURSE ${WORK})
set(install_arguments)
if(CONFIG)
  list(APPEND install_arguments --config ${CONFIG})
endif()
if(KIND STREQUAL "static")
  list(APPEND install_arguments --component static)
  set(library libdeltarelay.a)
else()
  set(library libdeltarelay.so)
endif()
run("install" ${CMAKE_COMMAND} --install ${BUILD} --prefix ${WORK}/first ${install_arguments})
file(RENAME ${WORK}/first ${WORK}/prefix) # nothing in the tree may depend on its location
set(prefix ${WORK}/prefix)

foreach(file include/deltarelay/deltarelay.h include/deltarelay/deltarelay.hpp include/deltarelay/tensor_list.hpp
             ${LIBDIR}/${library} ${LIBDIR}/pkgconfig/deltarelay.pc ${LIBDIR}/cmake/deltarelay/deltarelayConfig.cmake)
  expect_file(${prefix}/${file})
endforeach()
file(GLOB libraries RELATIVE ${prefix}/${LIBDIR} ${prefix}/${LIBDIR}/libdeltarelay*)
foreach(found IN LISTS libraries)
  if(NOT found MATCHES "^${library}")
    message(FATAL_ERROR "install tree: expected ${library} alone, found ${found} beside it")
  endif()
endforeach()

if(KIND STREQUAL "shared")
  run("the installed command" ${prefix}/bin/deltarelay info)
  # Files that the help names, and targets of links in the documents, must exist.
  set(documents ${prefix}/${DOCDIR})
  foreach(file LICENSE NOTICE CHANGELOG.md examples/forward.c)
    expect_file(${documents}/${file})
  endforeach()
  foreach(words --help "verify;--help" "bench;--help")
    run("the installed command ${words}" ${prefix}/bin/deltarelay ${words})
    string(REGEX MATCHALL "(docs|tests/cases)/[-a-z_]+\\.[a-z]+" named "${output}")
    if(NOT named)
      message(FATAL_ERROR "${words}: expected documents or case files in the help, found none\n${output}")
    endif()
    foreach(file IN LISTS named)
      expect_file(${documents}/${file})
    endforeach()
  endforeach()
  file(GLOB_RECURSE texts ${documents}/docs/*.md)
  foreach(text IN LISTS texts)
    file(READ ${text} words)
    get_filename_component(folder ${text} DIRECTORY)
    string(REGEX MATCHALL "\\]\\([^)#:]+" links "${words}")
    foreach(link IN LISTS links)
      string(SUBSTRING "${link}" 2 -1 link)
      if(NOT link MATCHES "^https?$")
        expect_file(${folder}/${link})
      endif()
    endforeach()
  endforeach()
  run("a case file of the tree" ${prefix}/bin/deltarelay verify ${documents}/tests/cases/smoke.txt -q)
endif()

build_project(${EXAMPLE} ${WORK}/cmake)
check_programs(${WORK}/cmake forward_c forward_cpp)

# The README's example, in a project as a reader would write it. It needs a CUDA toolkit to compile and a GPU to run.
find_program(nvcc NAMES nvcc HINTS $ENV{CUDA_HOME}/bin /usr/local/cuda/bin)
if(nvcc)
  file(READ ${README} words)
  string(REGEX MATCH "```cpp\n([^`]*)```" found "${words}")
  file(WRITE ${WORK}/readme/main.cpp "${CMAKE_MATCH_1}")
  file(WRITE ${WORK}/readme/CMakeLists.txt
       "cmake_minimum_required(VERSION 3.18)\nproject(readme LANGUAGES CXX)\n"
       "find_package(deltarelay REQUIRED)\nfind_package(CUDAToolkit REQUIRED)\nadd_executable(readme main.cpp)\n"
       "target_link_libraries(readme PRIVATE deltarelay::deltarelay CUDA::cudart)\n")
  build_project(${WORK}/readme ${WORK}/readme/build)
  execute_process(COMMAND nvidia-smi -L RESULT_VARIABLE no_gpu OUTPUT_QUIET ERROR_QUIET)
  if(no_gpu)
    message(STATUS "the README's example: compiled, not run: no GPU")
  else()
    check_programs(${WORK}/readme/build readme)
  endif()
else()
  message(STATUS "the README's example: not compiled: no CUDA toolkit")
endif()

# A project with C only.
file(WRITE ${WORK}/c/CMakeLists.txt "cmake_minimum_required(VERSION 3.16)\nproject(c_alone LANGUAGES C)\n"
     "find_package(deltarelay REQUIRED)\nadd_executable(forward_c ${EXAMPLE}/../forward.c)\n"
     "target_link_libraries(forward_c PRIVATE deltarelay::deltarelay m)\n")
build_project(${WORK}/c ${WORK}/c/build)
check_programs(${WORK}/c/build forward_c)

find_program(pkg_config NAMES pkg-config pkgconf)
find_program(make NAMES make gmake)
if(NOT pkg_config OR NOT make)
  message(FATAL_ERROR "pkg-config and make: expected both (Debian: apt-get install pkg-config make), "
                      "found '${pkg_config}' and '${make}'")
endif()
set(ENV{PKG_CONFIG_PATH} ${prefix}/${LIBDIR}/pkgconfig)
run("pkg-config: version" ${pkg_config} --modversion deltarelay)
if(NOT output MATCHES "^${VERSION}\n")
  message(FATAL_ERROR "pkg-config: expected version ${VERSION}, found ${output}")
endif()
if(KIND STREQUAL "static")
  set(pkg_config "${pkg_config} --static")
endif()
run("pkg-config: build" ${make} -C ${EXAMPLE} BUILD=${WORK}/make CC=${CC} CXX=${CXX} "PKG_CONFIG=${pkg_config}")
check_programs(${WORK}/make forward_c forward_cpp)

# The option for a static library, in a separate build that is only configured.
if(KIND STREQUAL "static")
  run("BUILD_SHARED_LIBS=OFF" ${CMAKE_COMMAND} -S ${SOURCE} -B ${WORK}/switch -G ${GENERATOR} -DCMAKE_C_COMPILER=${CC}
      -DCMAKE_CXX_COMPILER=${CXX} -DBUILD_SHARED_LIBS=OFF -DDELTARELAY_CUDA=OFF -DDELTARELAY_BUILD_TOOLS=OFF
      -DDELTARELAY_DEPS_DIR=${DEPS})
  file(READ ${WORK}/switch/cmake_install.cmake words)
  if(NOT words MATCHES "libdeltarelay\\.a\"" OR words MATCHES "libdeltarelay\\.so")
    message(FATAL_ERROR "BUILD_SHARED_LIBS=OFF: expected a rule that installs libdeltarelay.a alone, found\n${words}")
  endif()
endif()
