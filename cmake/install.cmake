# Installs the library, its headers, a CMake package, a pkg-config file, and the documents and cases that the command's
# help names. The package finds its parts relative to itself, so an install tree can be moved.
include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/deltarelay)
file(RELATIVE_PATH prefix_from_pc /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
string(REGEX REPLACE "/$" "" prefix_from_pc "${prefix_from_pc}")

# What pkg-config adds with --static.
set(pc_libs_private "")
set(package_needs_hwy OFF)
if(NOT TARGET dr_hwy)
  set(package_needs_hwy ON)
  string(APPEND pc_libs_private "-lhwy ")
endif()
set(package_needs_cuda OFF)
if(DELTARELAY_HAS_CUDA)
  set(package_needs_cuda ON)
  string(APPEND pc_libs_private "-L${CUDAToolkit_LIBRARY_DIR} -lcudart_static -ldl -lrt ")
endif()
string(APPEND pc_libs_private "-lstdc++ -lm -pthread")

# Installs a library with its headers and package files. Further arguments go to every install(): COMPONENT and so on.
function(dr_install_library target)
  get_target_property(kind ${target} TYPE)
  set(package_is_static OFF)
  if(kind STREQUAL "STATIC_LIBRARY")
    set(package_is_static ON)
  endif()
  set(files ${PROJECT_BINARY_DIR}/package/${target})
  configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/deltarelayConfig.cmake.in ${files}/deltarelayConfig.cmake
                                INSTALL_DESTINATION ${package_dir})
  # Before 1.0 a minor version may change the API.
  write_basic_package_version_file(
    ${files}/deltarelayConfigVersion.cmake
    VERSION ${PROJECT_VERSION}
    COMPATIBILITY SameMinorVersion)
  configure_file(${PROJECT_SOURCE_DIR}/cmake/deltarelay.pc.in ${files}/deltarelay.pc @ONLY)

  install(
    TARGETS ${target}
    EXPORT ${target}Targets
    LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} ${ARGN}
    ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} ${ARGN})
  install(
    EXPORT ${target}Targets
    NAMESPACE deltarelay::
    DESTINATION ${package_dir} ${ARGN})
  install(
    FILES ${files}/deltarelayConfig.cmake ${files}/deltarelayConfigVersion.cmake
          ${PROJECT_SOURCE_DIR}/cmake/find_highway.cmake
    DESTINATION ${package_dir} ${ARGN})
  install(FILES ${files}/deltarelay.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig ${ARGN})
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/deltarelay DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} ${ARGN})
endfunction()
dr_install_library(deltarelay)

# The same layout as in the sources, so that links between documents and references to tests/cases/ hold here too.
install(
  FILES ${PROJECT_SOURCE_DIR}/LICENSE ${PROJECT_SOURCE_DIR}/NOTICE ${PROJECT_SOURCE_DIR}/README.md
        ${PROJECT_SOURCE_DIR}/CHANGELOG.md ${PROJECT_SOURCE_DIR}/CONTRIBUTING.md
  DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(FILES ${PROJECT_SOURCE_DIR}/bench/README.md DESTINATION ${CMAKE_INSTALL_DOCDIR}/bench)
install(
  DIRECTORY ${PROJECT_SOURCE_DIR}/src/kernels
  DESTINATION ${CMAKE_INSTALL_DOCDIR}/src
  FILES_MATCHING
  PATTERN README.md)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/docs ${PROJECT_SOURCE_DIR}/examples DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/tests/cases DESTINATION ${CMAKE_INSTALL_DOCDIR}/tests)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/bench/results DESTINATION ${CMAKE_INSTALL_DOCDIR}/bench)

# The other kind of library, to test its install tree: `cmake --install <build> --component static`.
if(DELTARELAY_BUILD_TESTS)
  dr_add_library(deltarelay_static STATIC)
  dr_install_library(deltarelay_static COMPONENT static EXCLUDE_FROM_ALL)
endif()
