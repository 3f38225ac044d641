#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "deltarelay/commands.h"
#include "deltarelay/tensor_list.hpp"
#include "deltarelay/terminal.h"

namespace deltarelay::command {
namespace {

using nlohmann::json;

const char* name_of(TensorAxis axis) {
  switch (axis) {
    case TensorAxis::kTokens:
      return "T";
    case TensorAxis::kSequences:
      return "N";
    case TensorAxis::kBounds:
      return "N + 1";
    case TensorAxis::kHeadsQk:
      return "HQK";
    case TensorAxis::kHeadsV:
      return "HV";
    case TensorAxis::kKeyWidth:
      return "DK";
    case TensorAxis::kValueWidth:
      return "DV";
    case TensorAxis::kGateWidth:
      return "DK (KDA)";
    case TensorAxis::kCheckpointRows:
      return "checkpoints";
    case TensorAxis::kSlots:
      return "slots";
    case TensorAxis::kMatrix:
      return "DV and DK";
    case TensorAxis::kChunk:
      return "C";
    case TensorAxis::kStateRows:
      return "R (carry: T)";
    case TensorAxis::kStateMatrix:
      return "DV and DK";
    case TensorAxis::kSummaryRows:
      return "N (carry: T)";
    case TensorAxis::kSummaryMatrix:
      return "DV + DK, DK";
    case TensorAxis::kNone:
      break;
  }
  return "";
}

const char* name_of(TensorType type) {
  switch (type) {
    case TensorType::kData:
      return "dtype";
    case TensorType::kOutput:
      return "dtype_o";
    case TensorType::kGate:
      return "dtype_gate";
    case TensorType::kBeta:
      return "dtype_beta";
    case TensorType::kALog:
      return "dtype_a_log";
    case TensorType::kDtBias:
      return "dtype_dt_bias";
    case TensorType::kState:
      return "dtype of the pool";
    case TensorType::kStateIndex:
      return "index_dtype of the pool";
    case TensorType::kOffsets:
      return "seq_offsets_dtype";
    case TensorType::kByte:
      return "uint8";
    case TensorType::kInt32:
      return "int32";
    case TensorType::kIntermediate:
      return "chunks.dtype";
    case TensorType::kStates:
      return "chunks.dtype_states";
    case TensorType::kFp32:
      return "fp32";
  }
  return "";
}

std::string axes_of(const TensorEntry& entry) {
  std::string text;
  for (const TensorAxis axis : entry.axes)
    if (axis != TensorAxis::kNone) text += (text.empty() ? "" : ", ") + std::string(name_of(axis));
  return "[" + text + "]";
}

// Name of the problem's description of the tensor, which gives strides and alignment; empty if there is none.
std::string placed_by(const TensorEntry& entry) {
  if (entry.kind == TensorKind::kRows) return std::string("layout_") + entry.name;
  return entry.kind == TensorKind::kPool ? entry.name : "contiguous";
}

std::string alignment_of(const TensorEntry& entry) {
  if (entry.alignment == 0) return "an element";
  return std::to_string(entry.alignment) + " bytes" + (entry.tensor == Tensor::kG ? " (GDN: an element)" : "");
}

std::string operations_of(const TensorEntry& entry) {
  struct Name {
    int32_t op;
    const char* text;
  };
  constexpr Name kNames[] = {{DR_FORWARD, "forward"}, {DR_CHUNK_LOCAL, "chunk-local"}, {DR_STATE_PASS, "state-pass"},
                             {DR_OUTPUTS, "outputs"}, {DR_SUMMARY, "summary"},         {DR_CARRY, "carry"}};
  std::string names;
  for (const Name& name : kNames)
    if ((entry.operations & operation_bit(name.op)) != 0) names += (names.empty() ? "" : ", ") + std::string(name.text);
  return names;
}

const char* direction_of(const TensorEntry& entry) {
  if (entry.direction == TensorDirection::kEither) return "given: in; wanted: out";
  return entry.direction == TensorDirection::kOut ? "out" : "in";
}

Table table_of_tensors() {
  Table table({"tensor", "axes", "type", "direction", "operations", "lies by", "aligned to", "given"}, 8);
  for (const TensorEntry& entry : kTensors) {
    table.add({entry.name, axes_of(entry), name_of(entry.type), direction_of(entry), operations_of(entry),
               placed_by(entry), alignment_of(entry), entry.given});
  }
  return table;
}

void print_tensors_json() {
  json all = json::array();
  for (const TensorEntry& entry : kTensors) {
    all.push_back({{"name", entry.name},
                   {"axes", axes_of(entry)},
                   {"type", name_of(entry.type)},
                   {"direction", direction_of(entry)},
                   {"operations", operations_of(entry)},
                   {"lies_by", placed_by(entry)},
                   {"aligned_to", alignment_of(entry)},
                   {"given", entry.given}});
  }
  std::printf("%s\n", all.dump(2).c_str());
}

}  // namespace

void add_tensors(Command app, int& exit_code) {
  struct Settings {
    bool json = false;
    bool markdown = false;
  };
  Command command = app.add_subcommand("tensors", "The tensors of a call: axes, types, directions, alignments");
  command.footer("Example:\n  deltarelay tensors");
  auto settings = std::make_shared<Settings>();
  command.add_flag("--json", settings->json, "Print JSON, one entry a tensor");
  command.add_flag("--markdown", settings->markdown, "Print a Markdown table");
  command.callback([settings, &exit_code] {
    require_one_format(settings->json, settings->markdown);
    if (settings->json) {
      print_tensors_json();
    } else {
      const Table table = table_of_tensors();
      std::printf("%s", (settings->markdown ? table.markdown() : table.text()).c_str());
    }
    exit_code = kExitSuccess;
  });
}

}  // namespace deltarelay::command
