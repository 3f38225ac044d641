#pragma once
#ifdef __cplusplus
extern "C" {
#endif

typedef void (*dr_any_function)(void);
typedef struct dr_symbol {
  const char* name;
  dr_any_function address;
} dr_symbol;

const dr_symbol* dr_symbols_named_in_c(int* count);

#ifdef __cplusplus
}
#endif
