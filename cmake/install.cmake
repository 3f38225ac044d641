# What leaves the build tree: the shared library with only dr_* symbols, two headers, a CMake package and a pkg-config file.
# The package finds its parts relative to itself, so an install tree can be moved.
include(CMakePackageConfigHelpers)

set(exports ${PROJECT_SOURCE_DIR}/cmake/exports.map)
target_link_options(deltarelay PRIVATE -Wl,--version-script=${exports} -Wl,--no-undefined)
set_property(TARGET deltarelay APPEND PROPERTY LINK_DEPENDS ${exports})
if(DELTARELAY_SANITIZE)
  # Instrumented objects leave the sanitizer's symbols to the executable.
  target_link_options(deltarelay PRIVATE -Wl,-z,undefs)
endif()

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/deltarelay)
install(
  TARGETS deltarelay
  EXPORT deltarelayTargets
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/deltarelay DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(
  EXPORT deltarelayTargets
  NAMESPACE deltarelay::
  DESTINATION ${package_dir})

configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/deltarelayConfig.cmake.in
                              ${PROJECT_BINARY_DIR}/deltarelayConfig.cmake INSTALL_DESTINATION ${package_dir})
# Before 1.0 a minor version may change the contract.
write_basic_package_version_file(
  ${PROJECT_BINARY_DIR}/deltarelayConfigVersion.cmake
  VERSION ${PROJECT_VERSION}
  COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/deltarelayConfig.cmake ${PROJECT_BINARY_DIR}/deltarelayConfigVersion.cmake
        DESTINATION ${package_dir})

file(RELATIVE_PATH prefix_from_pc /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
string(REGEX REPLACE "/$" "" prefix_from_pc "${prefix_from_pc}")
configure_file(${PROJECT_SOURCE_DIR}/cmake/deltarelay.pc.in ${PROJECT_BINARY_DIR}/deltarelay.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/deltarelay.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
