#include "experiments/calibrate/kernel_list.hpp"

#include "experiments/calibrate/kernel_memory.hpp"
#include "policies/model/operators.hpp"
#include "policies/schedule/caches.hpp"
#include "policies/schedule/program.hpp"

namespace spillway {

std::vector<Task> kernel_tasks(const Problem& problem, bool groups) {
  const double layer = forward_flops(problem);
  std::vector<Task> tasks;
  const auto add = [&](TaskKind kind, double flops) -> Task& {
    Task task;
    task.kind = kind;
    task.lane = Lane::gpu_compute;
    task.flops = flops;
    task.layer = 0;
    task.micro_batch = 0;
    task.first_micro_batch = problem.gradient_bytes() == 2 && kind != TaskKind::embed_forward &&
                             kind != TaskKind::forward && kind != TaskKind::input_gradient;
    return tasks.emplace_back(task);
  };
  const auto backward = [&](SavedMask available, bool output) -> Task& {
    Task& task = add(TaskKind::backward, backward_flops(problem, available, output));
    task.available = available;
    task.recomputes_output = output;
    return task;
  };
  add(TaskKind::embed_forward, 0);
  add(TaskKind::forward, layer);
  add(TaskKind::forward, layer).saves = saved_all(problem.model);
  add(TaskKind::head, head_flops(problem));
  backward(saved_all(problem.model), false);
  if (groups) {
    for (const SavedMask group : recompute_groups(problem.model))
      backward(saved_others(problem.model, group), false);
  }
  backward(saved_none, false);
  backward(saved_none, true);
  if (KernelMemory::splits_backward(problem)) {
    for (const SavedMask available : {saved_none, saved_all(problem.model)}) {
      add(TaskKind::input_gradient, input_gradient_flops(problem, available, false)).available =
          available;
    }
    add(TaskKind::weight_gradient, weight_gradient_flops(problem)).available =
        saved_all(problem.model);
  }
  if (trained_elements(problem.model, embedding_unit(problem.model)) > 0)
    add(TaskKind::embed_backward, 0);
  return tasks;
}

std::uint64_t layer_bytes(const Problem& problem) {
  return KernelMemory::parameter_bytes(problem, 0) + KernelMemory::gradient_bytes(problem) +
         saved_bytes(problem, saved_all(problem.model));
}

std::vector<TimedKernel> timed_kernels(const Problem& problem, const std::vector<Task>& tasks,
                                       bool in_caches) {
  const bool fits = layer_bytes(problem) <= cached_bytes;
  std::vector<TimedKernel> kernels;
  for (const Task& task : tasks) {
    kernels.push_back({task, false});
    const bool is_whole_pass = task.kind == TaskKind::forward || task.kind == TaskKind::backward;
    if (in_caches && fits && is_whole_pass) kernels.push_back({task, true});
  }
  return kernels;
}

std::vector<Task> new_tasks(const Problem& problem, std::vector<Task> tasks,
                            std::set<std::string>& known) {
  std::erase_if(tasks, [&](const Task& task) {
    const std::string name = to_string(task.kind) + (" " + kernel_shape(problem, task));
    return !known.insert(name).second;
  });
  return tasks;
}

std::vector<std::pair<Problem, std::vector<Task>>> kernels_by_width(const Problem& problem) {
  std::set<std::string> known;
  std::vector<std::pair<Problem, std::vector<Task>>> all;
  for (const GradientWidth width : {GradientWidth::bits32, GradientWidth::automatic}) {
    Problem one = problem;
    one.workload.batch = one.workload.micro_batch;
    one.workload.gradient = width;
    std::vector<Task> tasks = new_tasks(one, kernel_tasks(one, false), known);
    if (!tasks.empty()) all.emplace_back(std::move(one), std::move(tasks));
  }
  return all;
}

}  // namespace spillway
