#include "exec/run/adapter_merge.hpp"

#include "base/directory.hpp"
#include "base/errors.hpp"
#include "exec/data/checkpoint.hpp"
#include "exec/data/merged_weights.hpp"
#include "exec/run/run_export.hpp"
#include "policies/model/model_folder.hpp"
#include "policies/model/peft.hpp"

namespace spillway {

MergedModel merge_adapter(const MergeRequest& request) {
  const std::optional<ModelFolder> folder = find_model_folder(request.model);
  if (!folder)
    throw InputError(Setting{"model", request.model} + ": there is no folder with its weights",
                     "name the folder of the model that the adapters were trained beside");
  constexpr std::uint64_t longest_config = std::uint64_t{1} << 20;
  const std::filesystem::path config = request.adapter / adapter_config_file;
  const ModelSpec model =
      load_model(request.model, parse_adapter_config(read_file(config, longest_config),
                                                     config.string(), read_model_folder(*folder)));
  Checkpoint weights(folder->path, model, request.make_ring);
  weights.set_strip_bytes(request.files.strip_bytes);
  Checkpoint adapter(request.adapter, model, request.make_ring, CheckpointPart::adapter);
  const auto values = [](Checkpoint& from) {
    return [&from](std::int64_t unit, std::uint64_t first, std::uint64_t count, float* to) {
      from.read(unit, first, count, to);
    };
  };
  const std::size_t files =
      write_model_folder(request.out, {folder->path, request.adapter}, model,
                         merged_weights(model, values(weights), values(adapter)), request.files);
  return {files, bytes_of_weights(model, request.files.type)};
}

}  // namespace spillway
