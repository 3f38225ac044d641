// Which form the walks of a variant take, whether their units hand on rows, and which summaries try their suffix: from
// the variant's values and what a call has.
#pragma once
#include <cstdint>
#include <numeric>

#include "kernels/form.h"
#include "kernels/relay.h"
#include "kernels/variant.h"

namespace deltarelay::plan {

// Work items of a strip.
constexpr int32_t tiles_a_strip(const Variant& variant, int32_t value_tiles) { return value_tiles / variant.strips; }

// Rows to emit, without a summary among them.
constexpr Form emit_form(const Variant& variant, int32_t tiles_a_strip, const CallBounds& bounds) {
  const Forms& forms = variant.forms;
  if (!forms.pairs) return Form::kSingle;
  if (tiles_a_strip > 1) return Form::kPair;
  const int64_t rows = bounds.folds > 0 ? bounds.rows3 : bounds.rows1;
  const bool long_rows = rows > 0 && bounds.chunks >= forms.twins_from * rows;
  return forms.twins_from > 0 && long_rows ? Form::kTwins : Form::kSingle;
}

constexpr Form form_of(const Variant& variant, int32_t tiles_a_strip, int32_t phase, const CallBounds& bounds) {
  const bool summarizes = phase == 1 && bounds.folds > 0;
  return variant.forms.pairs && summarizes ? Form::kPair : emit_form(variant, tiles_a_strip, bounds);
}

// Units that hand on whole sequences: clusters with strips of one key head, as many strips side by side as divide the
// units.
constexpr RelayUnits relay_units(const Variant& variant, int32_t tiles_a_strip, const CallBounds& bounds,
                                 int32_t units) {
  if (variant.forms.relay_strips == 0 || tiles_a_strip != 1) return {};
  const int32_t together = ctas(emit_form(variant, tiles_a_strip, bounds));
  return {together * std::gcd(variant.forms.relay_strips / together, units / together), variant.forms.relay_parts};
}

// `walked`: heads as the walk counts them, strips. `exact`: the carry is.
constexpr bool tries_suffixes(const Variant& variant, const CallBounds& bounds, int64_t walked, int32_t units,
                              bool exact) {
  const SuffixRule& rule = variant.suffix;
  if (!rule.tries || bounds.folds == 0 || (rule.exact && !exact)) return false;
  if (bounds.chunks < rule.least_chunks * bounds.rows1) return false;
  return !rule.crowded || 2 * bounds.rows1 * walked > units;
}

}  // namespace deltarelay::plan
