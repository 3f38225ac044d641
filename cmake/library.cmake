# The library that users link, from the objects that were compiled once.
#
#   dr_add_library(<target> SHARED|STATIC)
#
# A shared library contains everything except Highway (if the system's is a shared library) and the C and C++ runtimes.
# A static library leaves its dependencies to its users: the CMake package and the pkg-config file name them
# (cmake/install.cmake).
set(dr_library_objects $<TARGET_OBJECTS:deltarelay_objects>)
set(dr_library_needs Threads::Threads)
if(DELTARELAY_HAS_CUDA)
  foreach(part deltarelay_cuda deltarelay_cuda_shared deltarelay_cuda_portable)
    list(APPEND dr_library_objects $<TARGET_OBJECTS:${part}>)
  endforeach()
  list(APPEND dr_library_needs CUDA::cudart_static)
endif()
if(TARGET dr_hwy)  # built from sources, so no other library provides it
  list(APPEND dr_library_objects $<TARGET_OBJECTS:dr_hwy>)
else()
  list(APPEND dr_library_needs hwy::hwy)
endif()

function(dr_add_library name kind)
  add_library(${name} ${kind} ${dr_library_objects})
  target_link_libraries(${name} PRIVATE ${dr_library_needs})
  target_include_directories(${name} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
                                            $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  # For the C++ wrapper. The installed package requests it if C++ is enabled (deltarelayConfig.cmake.in).
  target_compile_features(${name} INTERFACE $<BUILD_INTERFACE:cxx_std_20>)
  set_target_properties(
    ${name}
    PROPERTIES OUTPUT_NAME deltarelay
               EXPORT_NAME deltarelay
               LINKER_LANGUAGE CXX)
  if(kind STREQUAL "SHARED")
    set(exports ${PROJECT_SOURCE_DIR}/cmake/exports.map)
    set_target_properties(
      ${name}
      PROPERTIES VERSION ${PROJECT_VERSION}
                 SOVERSION "${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR}"
                 LINK_DEPENDS ${exports})
    target_link_options(${name} PRIVATE -Wl,--version-script=${exports} -Wl,--no-undefined)
    if(DELTARELAY_SANITIZE)
      # Instrumented objects take the sanitizer's symbols from the executable.
      target_link_options(${name} PRIVATE -Wl,-z,undefs)
    endif()
  endif()
endfunction()

if(BUILD_SHARED_LIBS)
  dr_add_library(deltarelay SHARED)
else()
  dr_add_library(deltarelay STATIC)
endif()
add_library(deltarelay::deltarelay ALIAS deltarelay)
