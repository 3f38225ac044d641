# The Python package: the extension deltarelay._core, the library and the command, as one install component.
#
#   cmake --install <build> --component python --prefix <folder>      a folder for PYTHONPATH
#
# scikit-build-core puts the same into a wheel (pyproject.toml) and adds the modules itself. The extension is C with the
# limited API of 3.10: one file for every later Python. DELTARELAY_BUILD_PYTHON=CUDA builds deltarelay-cuda instead:
# only the library and the command (python/cuda).
string(TOUPPER "${DELTARELAY_BUILD_PYTHON}" python_wanted)
if(NOT BUILD_SHARED_LIBS OR NOT DELTARELAY_BUILD_TOOLS)
  message(FATAL_ERROR "DELTARELAY_BUILD_PYTHON: expected BUILD_SHARED_LIBS=ON and DELTARELAY_BUILD_TOOLS=ON beside it, "
          "found ${BUILD_SHARED_LIBS} and ${DELTARELAY_BUILD_TOOLS}")
endif()
set(python_component COMPONENT python EXCLUDE_FROM_ALL)
set(python_package deltarelay)
add_custom_target(python_package DEPENDS deltarelay deltarelay_command)

# Wheels cannot contain links, so the library has one name there: the one that programs link to.
if(SKBUILD)
  get_target_property(soname_version deltarelay SOVERSION)
  set_target_properties(deltarelay PROPERTIES VERSION ${soname_version})
endif()
set_property(TARGET deltarelay_command APPEND PROPERTY INSTALL_RPATH $ORIGIN/..)

if(python_wanted STREQUAL "CUDA")
  if(NOT DELTARELAY_HAS_CUDA)
    message(FATAL_ERROR "deltarelay-cuda: expected a CUDA toolkit, found none")
  endif()
  set(python_package deltarelay_cuda)
else()
  file(GLOB binding_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/python/binding/*.c)
  if(NOT binding_sources)
    message(FATAL_ERROR "python/binding: expected the C sources of deltarelay._core, found none")
  endif()
  # A Python without the global lock has no limited API yet; there the package calls the library through ctypes.
  find_package(Python 3.10 REQUIRED COMPONENTS Interpreter)
  execute_process(
    COMMAND ${Python_EXECUTABLE} -c "import sysconfig; print(int(sysconfig.get_config_var('Py_GIL_DISABLED') or 0))"
    OUTPUT_VARIABLE python_without_lock OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(python_without_lock)
    message(STATUS "Python ${Python_VERSION} has no limited API: deltarelay._core is left out")
  else()
    find_package(Python 3.10 COMPONENTS Interpreter Development.Module)
    if(NOT Python_Development.Module_FOUND)
      message(FATAL_ERROR "Python.h of ${Python_EXECUTABLE} was not found (Debian: apt-get install python3-dev)")
    endif()
    # CMake before 3.26 does not know the limited API (USE_SABI), so its three parts are written out: the macro, the
    # suffix, no libpython.
    add_library(deltarelay_core MODULE ${binding_sources})
    target_compile_definitions(deltarelay_core PRIVATE Py_LIMITED_API=0x030A0000)
    target_include_directories(deltarelay_core SYSTEM PRIVATE ${Python_INCLUDE_DIRS})
    target_link_libraries(deltarelay_core PRIVATE deltarelay Threads::Threads ${CMAKE_DL_LIBS} deltarelay_warnings)
    # The extension needs the library only if it uses a symbol of it.
    target_link_options(deltarelay_core PRIVATE -Wl,--as-needed)
    set_target_properties(
      deltarelay_core
      PROPERTIES PREFIX ""
                 OUTPUT_NAME _core
                 UNITY_BUILD OFF # its files have static tables of one name
                 SUFFIX .abi3.so
                 C_VISIBILITY_PRESET hidden
                 INSTALL_RPATH $ORIGIN
                 LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/python/deltarelay)
    add_dependencies(python_package deltarelay_core)
    install(TARGETS deltarelay_core LIBRARY DESTINATION deltarelay ${python_component})
  endif()
  if(NOT SKBUILD)
    install(DIRECTORY ${PROJECT_SOURCE_DIR}/python/deltarelay DESTINATION . ${python_component} FILES_MATCHING
            PATTERN "*.py" PATTERN "*.pyi" PATTERN py.typed PATTERN __pycache__ EXCLUDE)
  endif()
endif()

install(TARGETS deltarelay LIBRARY DESTINATION ${python_package} NAMELINK_SKIP ${python_component})
install(TARGETS deltarelay_command RUNTIME DESTINATION ${python_package}/bin ${python_component})
# Licences of code that is linked into these files.
foreach(licence highway/LICENSE libcli11-dev.copyright nlohmann-json3-dev.copyright)
  if(EXISTS ${DELTARELAY_DEPS_DIR}/${licence} AND NOT DELTARELAY_SYSTEM_DEPS)
    string(REPLACE "/" "." name ${licence})
    install(FILES ${DELTARELAY_DEPS_DIR}/${licence} DESTINATION ${python_package}/licences
            RENAME ${name} ${python_component})
  endif()
endforeach()
