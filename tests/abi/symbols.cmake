# The library exports only dr_*, links only the C and C++ runtimes, and contains nothing that prints or ends the
# process.
execute_process(COMMAND ${NM} -D --defined-only ${LIBRARY} OUTPUT_VARIABLE defined COMMAND_ERROR_IS_FATAL ANY)
string(REGEX REPLACE "\n$" "" defined "${defined}")
string(REPLACE "\n" ";" defined "${defined}")
set(count 0)
foreach(line IN LISTS defined)
  string(REGEX REPLACE "^.* " "" symbol "${line}")
  math(EXPR count "${count} + 1")
  if(NOT symbol MATCHES "^dr_")
    message(SEND_ERROR "exported symbols: expected dr_* only, found ${symbol}")
  endif()
endforeach()
if(count LESS 19)
  message(SEND_ERROR "exported symbols: expected the whole contract, found ${count}")
endif()

execute_process(COMMAND ${READELF} -d ${LIBRARY} OUTPUT_VARIABLE dynamic COMMAND_ERROR_IS_FATAL ANY)
if(NOT dynamic MATCHES "soname: \\[${SONAME}\\]")
  message(SEND_ERROR "soname: expected ${SONAME}, found\n${dynamic}")
endif()
string(REGEX MATCHALL "\\(NEEDED\\)[^\n]*" needed "${dynamic}")
foreach(line IN LISTS needed)
  # Highway is a static archive in some distributions and a shared library in others. The CUDA runtime is linked
  # statically and needs libdl and librt where they are not part of libc. libcuda is loaded when a GPU is used, not
  # before.
  if(NOT line MATCHES "\\[(libc|libm|libstdc\\+\\+|libgcc_s|libpthread|libdl|librt|libhwy|ld-linux-[a-z0-9-]+)\\.so")
    message(SEND_ERROR "needed libraries: expected the C and C++ runtimes, found ${line}")
  endif()
endforeach()

# Functions that print, end the process, read the environment or change the floating-point mode.
string(CONCAT forbidden "(__)?v?f?printf(_chk)?|puts|putchar|fputs|fputc|putc|fwrite|perror|write|"
              "abort|exit|_exit|_Exit|quick_exit|__assert_fail|getenv|secure_getenv|setenv|putenv|"
              "fesetround|fesetenv|feenableexcept|_ZSt4cout|_ZSt4cerr|_ZSt4clog|system|signal|sigaction")
string(REPLACE "|" ";" objects "${OBJECTS}")
foreach(object IN LISTS objects)
  execute_process(COMMAND ${NM} -u ${object} OUTPUT_VARIABLE undefined COMMAND_ERROR_IS_FATAL ANY)
  string(REGEX MATCHALL "[ \t]U (${forbidden})\n" found "${undefined}")
  if(object MATCHES "\\.cu\\.o$")  # nvcc makes a host stub for each device function, which would call exit
    list(FILTER found EXCLUDE REGEX "U exit\n")
  endif()
  foreach(symbol IN LISTS found)
    string(STRIP "${symbol}" symbol)
    message(SEND_ERROR "${object}: expected no call that prints, ends the process or reads the environment, "
                       "found ${symbol}")
  endforeach()
endforeach()
list(LENGTH objects object_count)
message(STATUS "${count} exported symbols, ${object_count} objects")
