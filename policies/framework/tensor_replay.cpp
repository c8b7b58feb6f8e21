#include "policies/framework/tensor_replay.hpp"

#include <algorithm>

#include "policies/model/saved.hpp"

namespace spillway {

namespace {

constexpr std::size_t most_tensors = 20'000;
constexpr int replayed_steps = 2;  // the second begins with what the first one left

class Tensors {
 public:
  Tensors(const Rewriting& program, const Problem& problem, const Framework& framework)
      : program_(program),
        problem_(problem),
        framework_(framework),
        tokens_(
            static_cast<std::uint64_t>(problem.workload.micro_batch * problem.workload.sequence)) {}

  std::vector<TensorEvent> list() {
    const auto buffers = program_.buffers();
    const auto tasks = program_.tasks();
    std::vector<std::vector<BufferId>> first(tasks.size()), last(tasks.size());
    for (BufferId id = 0; id < buffers.size(); ++id) {
      const BufferInfo& one = buffers[id];
      if (one.tier != Tier::gpu || one.first_use == none || one.kind == BufferKind::scratch)
        continue;
      if (one.persistent) {
        make(program_.bytes(id));
        continue;
      }
      first[one.first_use].push_back(id);
      last[one.last_use].push_back(id);
    }
    std::vector<std::uint32_t> tensor(buffers.size());
    for (TaskId id = 0; id < tasks.size(); ++id) {
      if (tasks[id].step >= replayed_steps || next_ > most_tensors) break;
      for (const BufferId buffer : first[id]) tensor[buffer] = make(program_.bytes(buffer));
      if (framework_.whole_micro_batch) inside(tasks[id]);
      for (const BufferId buffer : last[id]) drop(tensor[buffer]);
    }
    return std::move(events_);
  }

 private:
  using Tensor = std::uint32_t;
  Tensor make(std::uint64_t bytes) {
    events_.push_back({next_, std::max<std::uint64_t>(bytes, 1)});
    return next_++;
  }
  void drop(Tensor tensor) { events_.push_back({tensor, 0}); }
  // So many elements a token, in the width of activations.
  Tensor wide(std::int64_t elements) {
    return make(tokens_ * static_cast<std::uint64_t>(elements) * problem_.activation_bytes());
  }

  void inside(const Task& task) {
    switch (task.kind) {
      case TaskKind::forward:
        return forward();
      case TaskKind::backward:
        return framework_.checkpoints_per_layer > 1 ? by_halves(task) : whole(task);
      case TaskKind::head:
        return logits();
      default:
        return;
    }
  }

  // Nothing is kept: an operator's input goes once its output is there.
  void forward() {
    const ModelSpec& model = problem_.model;
    chain({model.hidden, model.qkv_width(), model.hidden, model.hidden});
    chain({model.hidden, model.ffn, model.ffn, model.hidden});
  }
  void chain(const std::vector<std::int64_t>& widths) {
    Tensor before = wide(widths.front());
    for (std::size_t w = 1; w < widths.size(); ++w) {
      const Tensor after = wide(widths[w]);
      drop(before);
      before = after;
    }
    drop(before);
  }

  // What is computed again of a half, then gradients, each in place of what it is made of.
  void by_halves(const Task& task) {
    const ModelSpec& model = problem_.model;
    constexpr SavedMask feed_forward = gpt_saved::ln2 | gpt_saved::fc | gpt_saved::gelu;
    half(task, feed_forward, model.ffn);
    half(task, static_cast<SavedMask>(~feed_forward), model.qkv_width());
  }
  void half(const Task& task, SavedMask of_half, std::int64_t widest) {
    std::vector<Tensor> again = recompute(static_cast<SavedMask>(of_half & ~task.available));
    Tensor gradient = wide(widest);  // of the input of the last product; of qkv
    if (!again.empty()) drop_last(again);
    if (!again.empty()) {
      const Tensor next = wide(widest);
      drop(gradient);
      gradient = next;
      drop_last(again);
    }
    const Tensor input = wide(problem_.model.hidden);
    drop(gradient);
    while (!again.empty()) drop_last(again);
    drop(input);
  }
  // A whole layer with its gradients, none of which takes the place of another.
  void whole(const Task& task) {
    const ModelSpec& model = problem_.model;
    std::vector<Tensor> all = recompute(static_cast<SavedMask>(~task.available));
    for (const std::int64_t width :
         {model.ffn, model.hidden, model.hidden, model.qkv_width(), model.hidden})
      all.push_back(wide(width));
    while (!all.empty()) drop_last(all);
  }
  std::vector<Tensor> recompute(SavedMask of) {
    std::vector<Tensor> made;
    for (const SavedTensor& tensor : saved_tensors(problem_.model)) {
      if ((tensor.bit & of) != 0) made.push_back(wide(tensor.width));
    }
    return made;
  }
  void drop_last(std::vector<Tensor>& tensors) {
    drop(tensors.back());
    tensors.pop_back();
  }

  // They, and what the loss makes of them: fp32, the last in 16 bit.
  void logits() {
    const auto rows = tokens_ * static_cast<std::uint64_t>(problem_.model.vocabulary);
    std::vector<Tensor> all;
    auto left = static_cast<std::uint64_t>(framework_.logit_bytes);
    for (std::uint64_t width = 2; left > 0; width = 4) {
      all.push_back(make(rows * std::min(width, left)));
      left -= std::min(width, left);
    }
    while (!all.empty()) drop_last(all);
  }

  const Rewriting& program_;
  const Problem& problem_;
  const Framework& framework_;
  std::uint64_t tokens_;
  std::vector<TensorEvent> events_;
  Tensor next_ = 0;
};

}  // namespace

std::vector<TensorEvent> tensors_of(const Rewriting& program, const Problem& problem,
                                    const Framework& framework) {
  return Tensors(program, problem, framework).list();
}

}  // namespace spillway
