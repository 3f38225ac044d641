/* Names every function of the API from C. Linking shows that each is exported. symbols_test.cpp compares the list with
 * the header and with the symbol table of the library. */
#include "every_symbol.h"

#include "deltarelay/deltarelay.h"

#define ENTRY(function) \
  { #function, (dr_any_function)(function) }

static const dr_symbol kSymbols[] = {
    ENTRY(dr_status_string),
    ENTRY(dr_last_error),
    ENTRY(dr_version),
    ENTRY(dr_build_info),
    ENTRY(dr_device_count),
    ENTRY(dr_device_get),
    ENTRY(dr_device_find),
    ENTRY(dr_device_costs),
    ENTRY(dr_plan_create),
    ENTRY(dr_plan_destroy),
    ENTRY(dr_plan_workspace_bytes),
    ENTRY(dr_plan_summarize),
    ENTRY(dr_plan_describe),
    ENTRY(dr_execute),
    ENTRY(dr_backend_count),
    ENTRY(dr_backend_name),
    ENTRY(dr_backend_check),
    ENTRY(dr_isa_count),
    ENTRY(dr_isa_name),
};

const dr_symbol* dr_symbols_named_in_c(int* count) {
  *count = (int)(sizeof kSymbols / sizeof kSymbols[0]);
  return kSymbols;
}
