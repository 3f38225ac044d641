# hwy::hwy of the system. Highway packages differ: some have a CMake package, some only headers and a library.
if(NOT TARGET hwy::hwy)
  find_package(hwy QUIET)
endif()
if(NOT TARGET hwy::hwy)
  find_path(DELTARELAY_HWY_INCLUDE hwy/highway.h)
  find_library(DELTARELAY_HWY_LIBRARY hwy)
  mark_as_advanced(DELTARELAY_HWY_INCLUDE DELTARELAY_HWY_LIBRARY)
  if(DELTARELAY_HWY_INCLUDE AND DELTARELAY_HWY_LIBRARY)
    add_library(hwy::hwy UNKNOWN IMPORTED)
    set_target_properties(hwy::hwy PROPERTIES IMPORTED_LOCATION ${DELTARELAY_HWY_LIBRARY} INTERFACE_INCLUDE_DIRECTORIES
                                                                                          ${DELTARELAY_HWY_INCLUDE})
  endif()
endif()
