// What one worker of a stage keeps in memory, in doubles: C tokens of one head, and columns of its state.
#pragma once
#include <cstddef>
#include <cstdint>

#include "problem/problem.h"

namespace deltarelay::reference {

struct StageScratch {
  // Without memory it only counts `bytes`.
  StageScratch(const Problem& problem, std::byte* memory);

  double* q = nullptr;             // [C, DK]
  double* k = nullptr;             // [C, DK]
  double* beta = nullptr;          // [C]
  double* sum = nullptr;           // [C, gates]: log-decays from the start of the chunk to the token, inclusive
  double* step = nullptr;          // [C, gates]: of the token alone
  double* rest = nullptr;          // [C, gates]: of the tokens behind it, to the end of the chunk
  double* decay = nullptr;         // [DK]
  double* keys = nullptr;          // [DK, C]: column j is key j, decayed to a later token
  double* kk = nullptr;            // [C, C]: sum(k_i k_j E_ij), then Akk
  double* aqk = nullptr;           // [C, C]
  double* inverse = nullptr;       // [C, C]
  double* w = nullptr;             // [C, DK]
  double* k_to_end = nullptr;      // [C, DK]
  double* q_from_start = nullptr;  // [C, DK]
  double* rows = nullptr;          // [C, max(DK, kPanel)]: an operand
  double* values = nullptr;        // [C, kPanel]: U, V_new or o
  double* state = nullptr;         // [panel, DK, kPanel]
  double* next = nullptr;          // [DK, kPanel]
  double* transition = nullptr;    // [DK, DK]: M of one summary
  size_t bytes = 0;                // a multiple of kWorkspaceAlignment
};

}  // namespace deltarelay::reference
