// Runs the GPU passes of XLA, which are in TensorFlow's library, without a GPU; lists the kernels.
//
//   gpu_kernels MODULE.pb TARGET.txtpb
//
// MODULE.pb: HloModuleProto. TARGET.txtpb: GpuTargetConfigProto as text. Flags of XLA: XLA_FLAGS.
// Prints a line for each kernel, separated by tabs; the fields are those of `Kernel` in __init__.py.
#include <fstream>
#include <iostream>
#include <sstream>
#include <string>

#include "google/protobuf/text_format.h"
#include "xla/debug_options_flags.h"
#include "xla/hlo/ir/hlo_module.h"
#include "xla/service/compiler.h"
#include "xla/service/gpu/model/gpu_hlo_cost_analysis.h"
#include "xla/service/hlo.pb.h"
#include "xla/shape_util.h"
#include "xla/stream_executor/device_description.pb.h"
#include "xla/stream_executor/platform_manager.h"

namespace {

using xla::HloInstruction;
using xla::HloOpcode;
using Cost = xla::gpu::GpuHloCostAnalysis;

[[noreturn]] void Fail(const std::string& reason) {
  std::cerr << reason << std::endl;
  std::exit(1);
}

template <typename T>
T Value(absl::StatusOr<T> result) {
  if (!result.ok()) Fail(std::string(result.status().message()));
  return std::move(result).value();
}

std::string Read(const char* path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

int64_t Size(const xla::Shape& shape) {
  return shape.IsArray() ? xla::ShapeUtil::ByteSizeOf(shape) : 0;
}

// Bytes of all arrays in a shape, and the largest one. A library also returns its workspace, bytes
// that nobody reads.
int64_t Arrays(const xla::Shape& shape, bool library, xla::Shape* largest) {
  int64_t bytes = 0;
  for (const auto& [index, leaf] : xla::ShapeUtil::GetLeafShapes(shape)) {
    if (library && (leaf.element_type() == xla::S8 || leaf.element_type() == xla::U8)) continue;
    bytes += Size(leaf);
    if (Size(leaf) > Size(*largest)) *largest = leaf;
  }
  return bytes;
}

// Operations of TensorFlow that an instruction comes from: its own, those fused into it, or else
// those of what reads its result. Constants are shared between layers.
std::string Operations(const HloInstruction* op) {
  std::string names = op->metadata().op_name();
  if (op->opcode() == HloOpcode::kFusion) {
    auto inner = op->fused_instructions_computation()->MakeInstructionPostOrder();
    for (auto it = inner.rbegin(); it != inner.rend(); ++it) {
      const std::string& name = (*it)->metadata().op_name();
      bool known = (" " + names + " ").find(" " + name + " ") != std::string::npos;
      if (name.empty() || known || (*it)->opcode() == HloOpcode::kConstant) continue;
      names += (names.empty() ? "" : " ") + name;
    }
  }
  return names.empty() && op->user_count() ? Operations(op->users()[0]) : names;
}

// FLOPs of cuDNN's attention. It reads all tensors of four dimensions as half precision, whatever
// they are: XLA gives it a float32 bias, and gradients are wrong.
int64_t Attention(const HloInstruction* op) {
  for (const auto* operand : op->operands()) {
    const auto& shape = operand->shape();
    auto type = shape.element_type();
    if (shape.rank() == 4 && type != xla::F16 && type != xla::BF16) {
      Fail("error: cuDNN's attention in " + Operations(op) + " gets a tensor " +
           xla::ShapeUtil::HumanString(shape) + " and reads it as half precision, so its results " +
           "are wrong; cast it, e.g. the bias, to half precision before it is added to the scores");
    }
  }
  const auto& sizes = op->operand(0)->shape().dimensions();
  bool backward = op->custom_call_target().find("Backward") != std::string::npos;
  return 2 * (backward ? 5 : 2) * sizes[0] * sizes[1] * sizes[2] * sizes[2] * sizes[3];
}

void List(const xla::HloComputation* computation, Cost* cost) {
  for (const auto* op : computation->MakeInstructionPostOrder()) {
    std::string kind(xla::HloOpcodeString(op->opcode()));
    int64_t products = 0, read = 0;
    bool library = false;
    switch (op->opcode()) {
      case HloOpcode::kParameter:
      case HloOpcode::kConstant:
      case HloOpcode::kTuple:
      case HloOpcode::kGetTupleElement:
      case HloOpcode::kBitcast:
      case HloOpcode::kAfterAll:
        continue;
      case HloOpcode::kConditional:
      case HloOpcode::kCall:
      case HloOpcode::kWhile:
        for (const auto* called : op->called_computations()) List(called, cost);
        continue;
      case HloOpcode::kCustomCall:
        kind = op->custom_call_target();
        library = true;
        if (kind.rfind("__cudnn$fmha", 0) == 0) products = Attention(op);
        if (kind.rfind("__cublas", 0) == 0) products = cost->flop_count(*op);
        break;
      case HloOpcode::kFusion:
        kind = xla::ToString(op->fusion_kind());
        break;
      case HloOpcode::kDot:
        products = cost->flop_count(*op);
        break;
      default:
        break;
    }
    xla::Shape result, ignored;
    int64_t written = Arrays(op->shape(), library, &result);
    for (int64_t i = 0; i < op->operand_count(); ++i) {
      if (op->OperandIndices(op->operand(i))[0] != i) continue;
      read += library ? Arrays(op->operand(i)->shape(), true, &ignored)
                      : cost->operand_bytes_accessed(*op, i);
    }
    const std::string& config = op->raw_backend_config_string();
    auto time = config.find("\"exec_time_us\":");
    double model = time == std::string::npos ? 0 : std::atof(config.c_str() + time + 15);
    std::cout << op->name() << '\t' << kind << '\t' << products << '\t' << read << '\t' << written
              << '\t' << model << '\t' << xla::ShapeUtil::HumanStringWithLayout(result) << '\t'
              << Operations(op) << '\n';
  }
}

}  // namespace

int main(int argc, char** argv) {
  xla::HloModuleProto proto;
  stream_executor::GpuTargetConfigProto target;
  if (argc != 3 || !proto.ParseFromString(Read(argv[1])) ||
      !google::protobuf::TextFormat::ParseFromString(Read(argv[2]), &target)) {
    Fail("usage: gpu_kernels MODULE.pb TARGET.txtpb");
  }
  xla::DebugOptions debug = xla::GetDebugOptionsFromFlags();
  auto config = Value(xla::HloModule::CreateModuleConfigFromProto(proto, debug));
  auto module = Value(xla::HloModule::CreateFromProto(proto, config));
  auto* platform = Value(stream_executor::PlatformManager::PlatformWithName("CUDA"));
  auto* compiler = Value(xla::Compiler::GetForPlatform(platform));
  xla::Compiler::CompileOptions options;
  options.target_config = xla::Compiler::TargetConfig(target);
  module = Value(compiler->RunHloPasses(std::move(module), nullptr, options));
  Cost cost(Cost::Options{Size}, &options.target_config->device_description);
  auto status = module->entry_computation()->Accept(&cost);
  if (!status.ok()) Fail(std::string(status.message()));
  List(module->entry_computation(), &cost);
  return 0;
}
