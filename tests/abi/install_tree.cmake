# Installs the build, moves the tree, and builds and runs the example project against it twice: with find_package and with
# pkg-config.
function(run what)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "${what}: expected success, found ${status}\n${output}")
  endif()
  set(output "${output}" PARENT_SCOPE)
endfunction()

function(check_programs folder)
  foreach(program forward_c forward_cpp)
    run("${folder}/${program}" ${folder}/${program})
    if(NOT output MATCHES "checksum [0-9]+\\.[0-9]+")
      message(FATAL_ERROR "${program}: expected a checksum, found\n${output}")
    endif()
  endforeach()
endfunction()

file(REMOVE_RECURSE ${WORK})
set(config_argument)
if(CONFIG)
  set(config_argument --config ${CONFIG})
endif()
run("install" ${CMAKE_COMMAND} --install ${BUILD} --prefix ${WORK}/first ${config_argument})
file(RENAME ${WORK}/first ${WORK}/prefix) # nothing in the tree may depend on where it was put
set(prefix ${WORK}/prefix)

foreach(file include/deltarelay/deltarelay.h include/deltarelay/deltarelay.hpp ${LIBDIR}/libdeltarelay.so
             ${LIBDIR}/pkgconfig/deltarelay.pc ${LIBDIR}/cmake/deltarelay/deltarelayConfig.cmake)
  if(NOT EXISTS ${prefix}/${file})
    message(FATAL_ERROR "install tree: expected ${file}, found nothing")
  endif()
endforeach()

run("the installed command" ${prefix}/bin/deltarelay info)

run("find_package: configure" ${CMAKE_COMMAND} -S ${EXAMPLE} -B ${WORK}/cmake -G ${GENERATOR} -DCMAKE_C_COMPILER=${CC}
    -DCMAKE_CXX_COMPILER=${CXX} -DCMAKE_PREFIX_PATH=${prefix} -DCMAKE_BUILD_TYPE=Release)
run("find_package: build" ${CMAKE_COMMAND} --build ${WORK}/cmake)
check_programs(${WORK}/cmake)

find_program(pkg_config NAMES pkg-config pkgconf)
find_program(make NAMES make gmake)
if(NOT pkg_config OR NOT make)
  message(FATAL_ERROR "pkg-config and make: expected both (Debian: apt-get install pkg-config make), found '${pkg_config}' and '${make}'")
endif()
set(ENV{PKG_CONFIG_PATH} ${prefix}/${LIBDIR}/pkgconfig)
run("pkg-config: version" ${pkg_config} --modversion deltarelay)
if(NOT output MATCHES "^${VERSION}\n")
  message(FATAL_ERROR "pkg-config: expected version ${VERSION}, found ${output}")
endif()
run("pkg-config: build" ${make} -C ${EXAMPLE} BUILD=${WORK}/make CC=${CC} CXX=${CXX})
check_programs(${WORK}/make)
