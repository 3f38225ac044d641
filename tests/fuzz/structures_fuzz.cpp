// Fuzz target for the C structures: valid requests with a few spoilt words. For every input the library must not crash,
// must not touch memory outside the call, must give a reason if it refuses and then leave outputs unchanged, and must
// plan in bounded time.
#include <ctime>

#include "case/stages.h"
#include "execution.h"
#include "refusal.h"
#include "spoil.h"

namespace fuzz {
namespace {

// CPU time of one plan: the promised 50 ms, with a margin for slow machines and instrumented code.
#if defined(NDEBUG) && defined(__OPTIMIZE__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
constexpr double kMostPlanMilliseconds = 50 * 4;
#else
constexpr double kMostPlanMilliseconds = 50 * 40;
#endif

dr_plan* const kNoPlan = reinterpret_cast<dr_plan*>(uintptr_t{0x1000});  // a refused call must not change it

double thread_milliseconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e3 + static_cast<double>(now.tv_nsec) * 1e-6;
}

// A caller's thread pool without extra threads.
void run_in_order(void*, int64_t count, dr_parallel_body body, void* context) {
  for (int64_t i = 0; i < count; ++i) body(context, i);
}

// Owns everything that a request points to.
struct Request {
  dr_problem problem;
  dr_chunks chunks;
  Block chunk_block;
  std::vector<int64_t> offsets;  // in the problem; empty: none
  Block offset_list;
  dr_options options;
  dr_device device;
  bool has_device = false;
  Block device_block;
  std::vector<int32_t> columns;
  Block cost_list;
};

constexpr int32_t kFloats[] = {0, DR_FP32, DR_BF16, DR_FP16};

int32_t any_float(Input& in) { return kFloats[in.below(4)]; }

void draw_layout(Input& in, const dr_problem& p, int64_t heads, int64_t width, dr_layout& layout) {
  const int64_t tokens = p.seq_len > 0 ? p.seq_len : p.num_tokens;
  switch (in.below(6)) {
    case 4:
      layout.token = heads * width + in.in(0, 8);
      break;
    case 5:
      layout.token = width;
      layout.head = tokens * width;
      if (p.seq_len > 0) layout.sequence = heads * tokens * width;
      break;
    default:
      break;
  }
  layout.alignment_bytes = in.one_of<int32_t>({0, 0, 1, 4, 16, 256});
}

void draw_state(Input& in, const dr_problem& p, dr_state& state) {
  state.use = in.one_of<int32_t>({DR_STATE_ROWS, DR_STATE_SLOTS});
  state.layout = in.one_of<int32_t>({DR_STATE_VALUE_MAJOR, DR_STATE_KEY_MAJOR});
  state.dtype = any_float(in);
  state.index_dtype = in.one_of<int32_t>({0, DR_INT32, DR_INT64});
  if (in.one_in(3)) state.num_slots = p.num_seqs + in.in(0, 5);
  if (in.one_in(4)) state.stride_head = int64_t{p.dk} * p.dv + in.in(0, 9);
  if (in.one_in(4)) state.stride_slot = 2 * int64_t{p.heads_v} * p.dk * p.dv + 64;
  if (state.use == DR_STATE_SLOTS && in.one_in(3)) {
    state.has_null_index = 1;
    state.null_index = in.in(-1, 2);
  }
}

// A subset of `bits`.
int32_t some_of(Input& in, int32_t bits) { return bits & static_cast<int32_t>(in.below(2 * DR_COMPOSED)); }

// Turns a forward into a stage.
void draw_stage(Input& in, Request& r) {
  dr_problem& p = r.problem;
  dr_chunks& c = r.chunks;
  dr_chunks_init(&c);
  p.op = in.one_of<int32_t>({DR_CHUNK_LOCAL, DR_STATE_PASS, DR_OUTPUTS, DR_SUMMARY, DR_CARRY});
  const deltarelay::cases::StageBits bits = deltarelay::cases::stage_bits(p.op);
  c.given = bits.must;
  if (p.op == DR_SUMMARY && in.one_in(2)) c.given = DR_W | DR_U;
  if (p.op != DR_SUMMARY || c.given != 0) c.given |= some_of(in, bits.may_give);
  const int32_t left = bits.may_want & ~c.given;
  c.wanted = in.one_in(2) ? some_of(in, left) : left;
  if (p.op != DR_CARRY) c.chunk = in.one_of<int32_t>({0, 16, 32, 64});
  c.dtype = any_float(in);
  c.dtype_states = any_float(in);
  if (((c.given | c.wanted) & DR_STATES) != 0)
    c.states_layout = in.one_of<int32_t>({DR_STATE_VALUE_MAJOR, DR_STATE_KEY_MAJOR});
  c.sums_base_2 = in.one_in(2);
  p.checkpoints = DR_CHECKPOINTS_NONE;
  p.checkpoint_every = 0;
  p.checkpoint = {};
  if (p.op == DR_STATE_PASS || p.op == DR_CARRY) return;
  p.initial = p.final = {};
  p.initial_mask = 0;
}

void draw_problem(Input& in, Request& r) {
  dr_problem& p = r.problem;
  dr_problem_init(&p);
  p.rule = in.one_of<int32_t>({DR_KDA, DR_GDN});
  p.heads_qk = in.one_of<int32_t>({1, 2, 3});
  p.heads_v = p.heads_qk * in.one_of<int32_t>({1, 2});
  p.dk = in.one_of<int32_t>({16, 1, 3, 8, 33, 64, 128});
  p.dv = in.one_of<int32_t>({16, 1, 3, 8, 33, 64, 128, 512});
  p.num_seqs = in.in(1, 4);
  p.seq_offsets_dtype = in.one_of<int32_t>({0, DR_INT32, DR_INT64});
  const uint64_t form = in.below(3);
  if (form == 2) {
    p.seq_len = in.in(1, 130);
  } else {
    std::vector<int64_t> offsets(1);
    for (int64_t n = 0; n < p.num_seqs; ++n)
      offsets.push_back(offsets.back() + in.one_of<int64_t>({5, 0, 1, 15, 16, 17, 63, 64, 65, 130}));
    p.num_tokens = offsets.back() + in.in(0, 3);
    if (form == 0) r.offsets = offsets;  // otherwise they come at execution
  }
  p.dtype = any_float(in);
  p.dtype_o = any_float(in);
  p.dtype_gate = any_float(in);
  p.dtype_beta = any_float(in);
  p.dtype_a_log = any_float(in);
  p.dtype_dt_bias = any_float(in);
  p.gate_form = in.one_of<int32_t>({DR_GATE_LOG, DR_GATE_LINEAR, DR_GATE_RAW_SOFTPLUS, DR_GATE_RAW_BOUNDED});
  if (p.gate_form == DR_GATE_RAW_BOUNDED) p.lower_bound = -5.0f;
  if (p.gate_form <= DR_GATE_LINEAR && in.one_in(3)) p.gate_floor = -2.0f;
  p.beta_form = in.one_of<int32_t>({DR_BETA_VALUE, DR_BETA_LOGIT, DR_BETA_TWICE_LOGIT});
  p.l2norm = in.one_in(2);
  if (in.one_in(3)) {
    p.scale_given = 1;
    p.scale = 0.5f;
  }
  draw_layout(in, p, p.heads_qk, p.dk, p.layout_q);
  draw_layout(in, p, p.heads_qk, p.dk, p.layout_k);
  draw_layout(in, p, p.heads_v, p.dv, p.layout_v);
  draw_layout(in, p, p.heads_v, p.dv, p.layout_o);
  draw_layout(in, p, p.heads_v, p.rule == DR_KDA ? p.dk : 1, p.layout_g);
  draw_layout(in, p, p.heads_v, 1, p.layout_beta);
  if (in.one_in(2)) draw_state(in, p, p.initial);
  if (in.one_in(2)) draw_state(in, p, p.final);
  if (p.initial.use != DR_STATE_NONE && in.one_in(3)) p.initial_mask = 1;
  if (in.one_in(3)) {
    p.checkpoints = in.one_of<int32_t>({DR_CHECKPOINTS_EVERY, DR_CHECKPOINTS_LIST, DR_CHECKPOINTS_CHUNKS});
    if (p.checkpoints == DR_CHECKPOINTS_EVERY) p.checkpoint_every = 16 * in.in(1, 5);
    draw_state(in, p, p.checkpoint);
    if (p.checkpoint.num_slots != 0) p.checkpoint.num_slots += 64;
  }
  if (in.one_in(3)) draw_stage(in, r);
}

// Points the problem to what it has of a stage, spoilt or not.
void spoil_stage(Input& in, Request& r) {
  if (r.chunks.size == 0) return;
  for (int64_t i = in.one_in(3) ? in.in(1, 2) : 0; i > 0; --i) spoil(in, r.chunks, {});
  r.chunk_block = as_stated(in, r.chunks);
  r.problem.chunks = reinterpret_cast<const dr_chunks*>(r.chunk_block.data());
  if (in.one_in(60)) r.problem.chunks = nullptr;
}

void spoil_problem(Input& in, Request& r) {
  dr_problem& p = r.problem;
  for (int64_t i = in.one_in(2) ? in.in(1, 3) : 0; i > 0; --i)
    spoil(in, p,
          {offsetof(dr_problem, seq_offsets), offsetof(dr_problem, chunks), offsetof(dr_problem, backward),
           offsetof(dr_problem, steps)});
  if (in.one_in(100)) p.steps = reinterpret_cast<const dr_steps*>(uintptr_t{0x10});
  // The offsets get as many entries as the problem now says, or are not passed.
  if (r.offsets.empty()) return;
  if (p.num_seqs < 1 || p.num_seqs > 300'000 || p.num_tokens < 0) {
    r.offsets.clear();
    return;
  }
  r.offsets.resize(static_cast<size_t>(p.num_seqs) + 1, r.offsets.back());
  if (in.one_in(10)) r.offsets[in.below(r.offsets.size())] = in.odd_number();
  const size_t entry = p.seq_offsets_dtype == DR_INT64 ? sizeof(int64_t) : sizeof(int32_t);
  r.offset_list = Block(r.offsets.size() * entry, 0);
  for (size_t n = 0; n < r.offsets.size(); ++n) {
    if (entry == sizeof(int32_t)) r.offsets[n] = static_cast<int32_t>(r.offsets[n]);  // as the library will read it
    std::memcpy(r.offset_list.data() + n * entry, &r.offsets[n], entry);              // hosts are little-endian
  }
  p.seq_offsets = r.offset_list.data() + (in.one_in(100) ? 1 : 0);
}

// Costs of several kinds, spoilt or not, as far apart as the size of the first entry.
void draw_costs(Input& in, Request& r) {
  const int64_t count = in.in(1, 3);
  std::vector<dr_costs> entries(static_cast<size_t>(count));
  for (dr_costs& costs : entries) {
    dr_costs_init(&costs);
    const int32_t rule = in.one_of<int32_t>({DR_KDA, DR_GDN});
    dr_device h200;
    dr_device_init(&h200);
    expect(answered("dr_device_find", dr_device_find("h200", &h200)), "expected facts of an h200", "none");
    const bool cpu = in.one_in(2);
    if (cpu) expect(answered("dr_device_get", dr_device_get(0, &h200)), "expected facts of this CPU", "none");
    const char* const variant = cpu ? "" : in.one_of({"fused", "prepared"});
    const dr_status status = dr_device_costs(&h200, cpu ? "cpu" : "cuda-sm90", variant, rule, DR_FORWARD, &costs);
    expect(answered("dr_device_costs", status), "expected costs", "none");
  }
  if (in.one_in(6)) spoil(in, entries[in.below(entries.size())], {});
  if (in.one_in(10)) entries[0].size = static_cast<uint32_t>(in.odd_number());
  const size_t step = std::clamp<size_t>(entries[0].size, sizeof(uint32_t), kMostStructureBytes);
  r.cost_list = Block(step * entries.size(), 0);
  for (size_t i = 0; i < entries.size(); ++i) {
    if (i > 0 && !in.one_in(8)) entries[i].size = entries[0].size;
    // Limit the size to the distance of entries. Otherwise the caller would claim memory that does not exist.
    if (entries[i].size > step) entries[i].size = static_cast<uint32_t>(step);
    std::memcpy(r.cost_list.data() + i * step, &entries[i], std::min(step, sizeof(dr_costs)));
  }
  r.options.costs = reinterpret_cast<const dr_costs*>(r.cost_list.data());
  r.options.num_costs = static_cast<int32_t>(count);
}

void draw_options(Input& in, Request& r) {
  dr_options& o = r.options;
  dr_options_init(&o);
  o.backend = in.one_of<const char*>({nullptr, "cpu", "reference", "cpu", nullptr, "cuda-sm90", "cuda-sm80"});
  if (in.one_in(6)) o.isa = dr_isa_name(static_cast<int32_t>(in.below(8)));
  if (in.one_in(6)) o.variant = in.one_of({"fused", "prepared", ""});
  if (in.one_in(6)) o.policy = in.one_of({"deltarelay", "fla", "cula-sm100"});
  if (in.one_in(20)) (in.one_in(2) ? o.backend : in.one_in(2) ? o.isa : in.one_in(2) ? o.variant : o.policy) = "abacus";
  o.threads = in.one_of<int32_t>({0, 1, 2, 7, 4096});
  o.segments =
      in.one_of<int32_t>({DR_SEGMENTS_AUTO, DR_SEGMENTS_AUTO, DR_SEGMENTS_OFF, DR_SEGMENTS_COUNT, DR_SEGMENTS_LENGTH});
  if (o.segments >= DR_SEGMENTS_COUNT) o.segment_value = in.one_of<int64_t>({2, 3, 64, 128, 1, 1000});
  o.invariant = in.one_in(8);
  const bool may_drop = r.problem.l2norm != 0 && r.problem.beta_form != DR_BETA_VALUE;
  if (in.one_in(may_drop ? 3 : 30)) o.carry = DR_CARRY_TRUNCATED;
  if (in.one_in(12)) o.math = DR_MATH_TF32;
  // As many entries as num_columns can name before it is refused.
  if (in.one_in(8)) {
    for (int32_t column = 0; column < 512; ++column) r.columns.push_back(column);
    if (in.one_in(4)) r.columns[in.below(4)] = static_cast<int32_t>(in.odd_number());
    o.columns = r.columns.data();
    o.num_columns = in.one_of<int32_t>({1, 2, 5});
  }
  if (in.one_in(2)) {
    dr_device_init(&r.device);
    const char* const name = in.one_of({"cpu", "cpu", "h200", "a100", "b200"});
    expect(answered("dr_device_find", dr_device_find(name, &r.device)), "expected facts of a device", name);
    if (in.one_in(4)) spoil(in, r.device, {});
    r.has_device = true;
  }
  if (in.one_in(3)) draw_costs(in, r);
  if (in.one_in(8)) {
    spoil(in, o,
          {offsetof(dr_options, backend), offsetof(dr_options, isa), offsetof(dr_options, variant),
           offsetof(dr_options, policy), offsetof(dr_options, device), offsetof(dr_options, columns),
           offsetof(dr_options, costs), offsetof(dr_options, parallel_for)});
    // The library reads up to 1024 entries.
    const auto entries = static_cast<int32_t>(r.cost_list.given() ? 1 : 0);
    if (o.num_costs > 0 && o.num_costs <= 1024 && o.costs != nullptr) o.num_costs = entries;
  }
  o.parallel_for = run_in_order;
}

// A structure that the library fills, of any size, in exactly that many bytes.
template <class Structure, class Fill>
void check_output(Input& in, const char* function, Fill fill) {
  Structure structure;
  std::memset(static_cast<void*>(&structure), 0xcc, sizeof structure);
  structure.size = sizeof structure;
  if (in.one_in(3)) structure.size = static_cast<uint32_t>(in.odd_number());
  const Block block = as_stated(in, structure);
  const uint64_t before = block.hash();
  const bool filled = answered(function, fill(reinterpret_cast<Structure*>(block.data())));
  expect(block.guarded(), "expected memory beside a structure as it was", function);
  expect(filled || block.hash() == before, "expected a refused call to have written nothing", function);
  uint32_t size = 0;
  std::memcpy(&size, block.data(), sizeof size);
  expect(size == structure.size, "expected the caller's size of a structure", std::to_string(size));
}

void check_descriptions(Input& in, const dr_plan* plan) {
  for (const int32_t format : {DR_DESCRIBE_TEXT, DR_DESCRIBE_JSON, DR_DESCRIBE_SIGNATURE}) {
    size_t needed = 0;
    expect(answered("dr_plan_describe", dr_plan_describe(plan, format, nullptr, 0, &needed)), "expected words", "none");
    const Block text(in.one_in(3) ? 1 + in.below(needed) : needed, 0xcc);
    const dr_status status = dr_plan_describe(plan, format, reinterpret_cast<char*>(text.data()), text.size(), &needed);
    expect(answered("dr_plan_describe", status), "expected words", "none");
    expect(text.guarded(), "expected memory beside a text as it was", "other bytes");
    const auto* end = static_cast<const unsigned char*>(std::memchr(text.data(), '\0', text.size()));
    expect(end != nullptr && end + 1 == text.data() + text.size(), "expected a text of the size that was said",
           "another");
  }
  if (in.one_in(8)) {
    const auto format = static_cast<int32_t>(in.odd_number());
    answered("dr_plan_describe", dr_plan_describe(plan, format, nullptr, 0, nullptr));
  }
}

void use_plan(Input& in, const Request& r, const dr_plan* plan, const dr_problem* problem, const dr_options* options) {
  check_output<dr_plan_summary>(in, "dr_plan_summarize",
                                [&](dr_plan_summary* summary) { return dr_plan_summarize(plan, summary); });
  check_descriptions(in, plan);
  dr_plan_summary summary;
  dr_plan_summary_init(&summary);
  expect(answered("dr_plan_summarize", dr_plan_summarize(plan, &summary)), "expected a summary", "none");
  const std::string backend = summary.backend;
  for (int32_t i = 0; i < dr_backend_count(); ++i) {
    const bool serves = answered("dr_backend_check", dr_backend_check(i, problem, options));
    expect(serves || backend != dr_backend_name(i), "expected the chosen backend to serve the problem", backend);
  }
  if (backend != "cpu" && backend != "reference") return;
  dr_problem known{};  // what a longer or shorter structure says
  std::memcpy(&known, problem, std::min<size_t>(r.problem.size, sizeof known));
  dr_chunks chunks{};
  if (known.chunks != nullptr) {
    std::memcpy(&chunks, known.chunks, std::min<size_t>(r.chunks.size, sizeof chunks));
    known.chunks = &chunks;
  }
  execute(in, known, r.offsets, plan);
}

}  // namespace

void run_input(Input& in) {
  Request r{};
  draw_problem(in, r);
  spoil_problem(in, r);
  spoil_stage(in, r);
  draw_options(in, r);
  if (r.has_device) {
    r.device_block = as_stated(in, r.device);
    r.options.device = reinterpret_cast<const dr_device*>(r.device_block.data());
  }
  const Block problem_block = as_stated(in, r.problem);
  const Block options_block = as_stated(in, r.options);
  const auto* problem = reinterpret_cast<const dr_problem*>(problem_block.data());
  const auto* options = in.one_in(12) ? nullptr : reinterpret_cast<const dr_options*>(options_block.data());

  dr_plan* plan = kNoPlan;
  double milliseconds = 0;
  for (int32_t attempt = 0; attempt < 3; ++attempt) {  // the first attempt may include page faults
    if (plan != kNoPlan) dr_plan_destroy(plan);
    plan = kNoPlan;
    const double start = thread_milliseconds();
    const dr_status status = dr_plan_create(problem, options, &plan);
    milliseconds = thread_milliseconds() - start;
    expect(answered("dr_plan_create", status) == (plan != kNoPlan), "expected a plan or a refusal, and not both",
           "both");
    if (milliseconds < kMostPlanMilliseconds) break;
  }
  expect(milliseconds < kMostPlanMilliseconds, "expected a plan or a refusal in bounded time",
         std::to_string(milliseconds) + " ms");
  if (plan != kNoPlan) {
    use_plan(in, r, plan, problem, options);
    dr_plan_destroy(plan);
  } else if (in.one_in(4)) {
    for (int32_t i = -1; i <= dr_backend_count(); ++i)
      answered("dr_backend_check", dr_backend_check(i, problem, options));
  }
  const auto index = static_cast<int32_t>(in.one_in(4) ? in.odd_number() : in.in(0, 3));
  check_output<dr_device>(in, "dr_device_get", [&](dr_device* device) { return dr_device_get(index, device); });
  if (r.has_device) {
    check_output<dr_costs>(in, "dr_device_costs", [&](dr_costs* costs) {
      return dr_device_costs(r.options.device, in.one_of({"cpu", "cuda-sm90", "cuda-sm80", "reference", ""}),
                             in.one_of<const char*>({nullptr, "", "fused", "prepared"}),
                             in.one_of<int32_t>({DR_KDA, DR_GDN, 0, 9}),
                             in.one_of<int32_t>({DR_FORWARD, DR_BACKWARD, DR_STATE_PASS, -1}), costs);
    });
  }
}

}  // namespace fuzz
