// Forms of a walk: how CTAs that start together share a row. The planner chooses a form for each step; kernels are
// compiled for it.
#pragma once

namespace deltarelay {

// A strip (variant.h) has two halves of its value columns. A state group of warps holds one half.
enum class Form {
  kSingle,  // one CTA walks a strip: both halves of its values
  kPair,    // two CTAs walk a strip: one half each. The only form of a summary
  kTwins,   // two CTAs walk two strips of one key head: a strip each
};

// CTAs that work together: the cluster.
constexpr int ctas(Form form) { return form == Form::kSingle ? 1 : 2; }
// Strips that these CTAs walk.
constexpr int strips(Form form) { return form == Form::kTwins ? 2 : 1; }
// CTAs that share the values of one strip.
constexpr int ctas_a_strip(Form form) { return ctas(form) / strips(form); }
// Halves of a strip's values that one CTA holds.
constexpr int halves_a_cta(Form form) { return 2 / ctas_a_strip(form); }
// Does every CTA hold a whole strip?
constexpr bool has_whole_strip(Form form) { return ctas_a_strip(form) == 1; }

constexpr const char* name_of(Form form) {
  return form == Form::kSingle ? "single" : form == Form::kPair ? "pair" : "twins";
}

}  // namespace deltarelay
