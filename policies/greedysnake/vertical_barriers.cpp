// The vertical pass as GreedySnake's authors run it: bulk-synchronous.
//
// Before each micro-batch the host waits for all compute and all copies of the one before, starts
// the copies for its neighbours on one stream, launches compute, and runs a chunk of AdamW itself.
// The SSD is waited for once per block: requests for a block are issued when it is entered, while
// the GPU is still in the last micro-batch of the block before. The step ends with three stages
// that nothing overlaps, then the embedding; the next one begins with two more.
//
// Where updates wait for the norm of the whole gradient, none runs under backward: the undelayed
// parts follow in stages of their own, in each of which one block is read, one updated and one
// written.
//
// Source: the public code of GreedySnake's first author (arXiv 2512.17570), whose prefetch
// distances these are. Left out is what that program moves for nothing (docs/greedysnake.md).
#include <map>

#include "base/errors.hpp"
#include "policies/greedysnake/vertical.hpp"

namespace spillway {

namespace {

constexpr auto late = BlockStates::delayed;
constexpr auto now = BlockStates::rest;

class BulkSynchronousStep {
 public:
  BulkSynchronousStep(Program& program, ModelState& state, BlockStates& blocks,
                      const VerticalOptions& options, int step)
      : program_(program),
        state_(state),
        blocks_(blocks),
        options_(options),
        order_(program.problem(), options),
        step_(step),
        U_(order_.layers()),
        M_(order_.micro_batches()) {}

  void emit() {
    program_.at(step_, Phase::forward);
    begin_step();
    for (int u = 0; u + 1 < U_; ++u) forward_unit(u);
    last_unit();
    program_.at(step_, Phase::backward);
    for (int u = U_ - 2; u >= 0; --u) backward_unit(u);
    program_.at(step_, Phase::optimizer);
    drain();
    update_embedding();
  }

 private:
  // -- the host thread
  // Before a micro-batch: compute, copies and the chunk of AdamW before it are done.
  void enter_micro_batch() {
    program_.barrier({Lane::gpu_compute, Lane::pcie_h2d, Lane::cpu_optimizer}, LaneSet::all());
  }
  // Before a block: the requests issued for the block before are done, and AdamW on this thread.
  void enter_unit() {
    program_.barrier({Lane::ssd_read, Lane::ssd_write, Lane::cpu_optimizer}, LaneSet::all());
    blocks_.barrier();
  }
  void wait_for_all() {
    program_.barrier();
    blocks_.barrier();
  }
  bool is_block(int u) const { return u >= 0 && u < U_; }

  // -- model states, for any u: nothing where there is no such block
  void read_state(int u, BlockStates::Part part) {
    if (is_block(u) && (part == now ? blocks_.has(now) : blocks_.stashed(u)))
      blocks_.read_optimizer(u, part);
  }
  void write_back(int u, BlockStates::Part part) {
    if (!is_block(u)) return;
    blocks_.write_optimizer(u, part);
    blocks_.write_parameters(u, part);
  }
  // What forward needs and AdamW will not produce in host memory.
  void read_for_forward(int u) {
    if (!is_block(u)) return;
    if (!blocks_.stashed(u)) blocks_.read_parameters(u, late);
    blocks_.read_parameters(u, now);
  }
  void read_for_backward(int u) {
    if (!is_block(u)) return;
    blocks_.read_parameters(u, late);
    blocks_.read_parameters(u, now);
  }
  void update_late(int u) {
    if (is_block(u) && blocks_.stashed(u)) blocks_.update(u, late);
  }
  void update_now(int u) {
    if (is_block(u) && blocks_.has(now)) blocks_.update(u, now);
  }

  // -- parameters on the GPU
  void begin_upload(int u) {
    if (!is_block(u)) return;
    const std::uint64_t bytes = blocks_.elements() * program_.problem().parameter_bytes();
    next_parameters_ = program_.buffer(Tier::gpu, bytes, BufferKind::parameters, u).part(0, bytes);
  }
  void upload_chunk(int u, int chunk) {
    if (!is_block(u)) return;
    blocks_.upload(u, blocks_.chunk_begin(chunk), blocks_.chunk_begin(chunk + 1), next_parameters_);
  }
  void end_upload() { parameters_ = next_parameters_; }

  // -- the head of a step: W1, W2
  void begin_step() {
    read_for_forward(0);
    wait_for_all();
    read_state(2, late);
    read_for_forward(1);
    write_back(0, late);
    update_late(1);
    begin_upload(0);
    blocks_.upload(0, 0, blocks_.elements(), next_parameters_);
    if (U_ != 2) blocks_.forget_parameters(0);
    end_upload();
    wait_for_all();
  }

  // -- outputs and inputs
  using Key = std::pair<int, int>;  // block that made it, micro-batch
  // The tasks of the pass in order: forward of blocks 0 .. U-2, then backward of U-1 .. 0.
  struct Visit {
    int layer = 0, position = 0, micro_batch = 0;
    bool backward = false;
    bool valid = false;
  };
  Visit visit(int u, int position, bool backward) const {
    return {u, position, order_.micro_batch(u, position), backward, true};
  }
  Visit next(const Visit& v) const {
    if (v.position + 1 < M_) return visit(v.layer, v.position + 1, v.backward);
    const int u = v.backward ? v.layer - 1 : v.layer + 1;
    return u < 0 ? Visit{} : visit(u, 0, v.backward || u == U_ - 1);
  }
  Slice gpu_activation(BufferKind kind, int layer, int m) {
    return program_.buffer(Tier::gpu, checkpoint_bytes(program_.problem()), kind, layer, m);
  }
  // The output of the forward visit before, which is in host memory from then on; unless it is the
  // input of the visit now, and nobody else's.
  void leave_output(const Visit& v) {
    if (!leaving_.valid) return;
    const auto [u, position, m, backward, valid] = leaving_;
    leaving_ = {};
    const bool only_here = u == U_ - 2 && v.layer == U_ - 1 && v.micro_batch == m;
    if (only_here) return;
    const Slice host = order_.rests_on_ssd(position)
                           ? blocks_.staging(u, order_.staging_slot(position))
                           : blocks_.checkpoint(u, order_.slot(position));
    program_.copy(leaving_gpu_, host, u, m);
    outputs_[{u, m}] = host;
  }
  // Outputs of block u that rest on the SSD. Those that backward uses first stay in host memory,
  // too: writing them would be for nothing.
  void write_outputs(int u) {
    if (u < 0 || u >= U_ - 3) return;
    for (int position = 0; position < M_; ++position) {
      if (!order_.rests_on_ssd(position)) continue;
      const int m = order_.micro_batch(u, position);
      const Slice host = outputs_.at({u, m});
      const Slice ssd = program_.buffer(Tier::ssd, host.bytes, BufferKind::checkpoint, u, m);
      program_.copy(host, ssd, u, m);
      on_ssd_[{u, m}] = ssd;
    }
  }
  void read_outputs(int u) {
    if (u < 0 || u >= U_ - 3) return;
    for (int position = M_ - 1; position >= 0; --position) {
      if (!order_.rests_on_ssd(position)) continue;
      const int m = order_.micro_batch(u, position);
      const Slice ssd = on_ssd_.at({u, m});
      const Slice host = blocks_.staging(u, order_.staging_slot(position));
      program_.copy(ssd, host, u, m);
      outputs_[{u, m}] = host;
    }
  }
  // The input of the next visit, unless this one leaves it on the GPU or it is embedded there.
  void fetch_input(const Visit& v) {
    const Visit n = next(v);
    next_input_ = {};
    if (!n.valid || n.layer == 0) return;
    const bool stays = !v.backward && n.layer != v.layer && n.micro_batch == v.micro_batch;
    if (stays) return;
    next_input_ = gpu_activation(BufferKind::checkpoint, n.layer - 1, n.micro_batch);
    program_.copy(outputs_.at({n.layer - 1, n.micro_batch}), next_input_, n.layer - 1,
                  n.micro_batch);
  }
  // The input of this visit on the GPU. The embedding's output is made anew where it is needed.
  Slice input_of(const Visit& v) {
    if (v.layer > 0) return input_;
    const Slice input = gpu_activation(BufferKind::checkpoint, -1, v.micro_batch);
    program_.embed_forward(v.micro_batch, state_.resident_parameters(state_.embedding()), input);
    return input;
  }

  // The copies for the neighbours of a visit, before and after the visit itself is emitted: what
  // comes has memory before the visit gives its own back, and what leaves keeps its memory until
  // the visit has some. A copy of the visit before that the next one needs has to go first.
  void fetch(const Visit& v) {
    const Visit n = next(v);
    if (leaving_.valid && leaving_.layer == n.layer - 1 && leaving_.micro_batch == n.micro_batch)
      leave_output(v);
    if (leaving_gradient_.first == n.micro_batch) leave_hidden_gradient();
    fetch_input(v);
    if (v.backward) fetch_hidden_gradient(v);
  }
  void leave(const Visit& v) {
    leave_output(v);
    leave_hidden_gradient();
  }

  // -- forward
  void forward_unit(int u) {
    if (u > 0) enter_unit();
    read_state(u + 3, late);
    read_for_forward(u + 2);
    write_back(u + 1, late);
    write_outputs(u - 1);
    const bool updates = is_block(u + 2) && blocks_.stashed(u + 2);
    begin_upload(u + 1);
    for (int position = 0; position < M_; ++position) {
      const Visit v = visit(u, position, false);
      enter_micro_batch();
      upload_chunk(u + 1, position);
      fetch(v);
      const Slice input = input_of(v);
      const Slice output = gpu_activation(BufferKind::checkpoint, u, v.micro_batch);
      program_.forward(u, v.micro_batch, parameters_, input, output);
      leave(v);
      leaving_ = v;
      leaving_gpu_ = output;
      input_ = next_input_.valid() ? next_input_ : output;
      if (updates) blocks_.update(u + 2, late, position);
    }
    // Block U-2's are used again at once, going down.
    if (u + 1 != U_ - 2) blocks_.forget_parameters(u + 1);
    end_upload();
  }

  // -- backward
  // The last block: forward, loss and backward of each micro-batch, nothing recomputed.
  void last_unit() {
    const int u = U_ - 1;
    if (u > 0) enter_unit();
    enter_backward(u);
    const Problem& problem = program_.problem();
    const Slice embedding = state_.resident_parameters(state_.embedding());
    head_gradient_ =
        state_.gradient_buffer(Tier::gpu, state_.embedding(), BufferKind::head_gradient);
    gradient_ = state_.gradient_buffer(Tier::gpu, u);
    for (int position = 0; position < M_; ++position) {
      const Visit v = visit(u, position, true);
      const int m = v.micro_batch;
      program_.at(step_, Phase::forward);
      enter_micro_batch();
      upload_chunk(u - 1, position);
      fetch(v);
      const Slice input = input_of(v);
      const Slice hidden = gpu_activation(BufferKind::activation_gradient, u, m);
      const Slice saved =
          program_.buffer(Tier::gpu, saved_bytes(problem, saved_all), BufferKind::saved, u, m);
      program_.forward(u, m, parameters_, input, hidden, saved);
      program_.at(step_, Phase::backward);
      program_.head(m, embedding, hidden, head_gradient_, position == 0);
      program_.backward(u, m, parameters_, input, saved, saved_all, hidden, gradient_,
                        position == 0, false);
      if (position == M_ - 1) program_.gradient_complete(u, gradient_);
      leave(v);
      finish(v, hidden);
    }
    leave_unit(u);
  }
  void backward_unit(int u) {
    enter_unit();
    enter_backward(u);
    gradient_ = state_.gradient_buffer(Tier::gpu, u);
    const bool updates = is_block(u + 2) && blocks_.has(now) && !program_.updates_wait();
    for (int position = 0; position < M_; ++position) {
      const Visit v = visit(u, position, true);
      enter_micro_batch();
      upload_chunk(u - 1, position);
      fetch(v);
      const Slice input = input_of(v);
      const Slice hidden = hidden_gradient_;
      program_.backward(u, v.micro_batch, parameters_, input, {}, saved_none, hidden, gradient_,
                        position == 0, options_.recomputes_output);
      if (position == M_ - 1) program_.gradient_complete(u, gradient_);
      leave(v);
      blocks_.leave_gradient(u + 1, blocks_.chunk_begin(position),
                             blocks_.chunk_begin(position + 1), complete_gradient_, step_);
      finish(v, hidden);
      if (updates) blocks_.update(u + 2, now, position);
    }
    leave_unit(u);
  }
  void enter_backward(int u) {
    const bool updates = !program_.updates_wait();
    if (updates) read_state(u + 1, now);
    read_for_backward(u - 2);
    if (u < U_ - 1) read_outputs(u - 2);  // the inputs of block u - 1
    if (updates) write_back(u + 3, now);
    if (updates && is_block(u + 3)) blocks_.forget_parameters(u + 3);
    begin_upload(u - 1);
  }
  void leave_unit(int u) {
    if (u > 0) blocks_.forget_parameters(u - 1);
    complete_gradient_ = gradient_;
    end_upload();
  }
  // After backward of v: its activation gradient is embedded, handed on, kept, or leaves with the
  // next visit's copies.
  void finish(const Visit& v, Slice hidden) {
    if (v.layer == 0) {
      const bool first = !embed_gradient_.valid();
      if (first) embed_gradient_ = state_.gradient_buffer(Tier::gpu, state_.embedding());
      program_.embed_backward(v.micro_batch, hidden, embed_gradient_, first);
      if (v.position == M_ - 1)
        program_.gradient_complete(state_.embedding(), embed_gradient_, head_gradient_);
    }
    const Visit n = next(v);
    const bool handed_on = n.valid && n.layer != v.layer && n.micro_batch == v.micro_batch;
    if (v.layer > 0 && !handed_on) {
      if (order_.stays_on_gpu(v.micro_batch)) {
        hidden_gradients_[v.micro_batch] = hidden;
      } else {
        leaving_gradient_ = {v.micro_batch, hidden};
      }
    }
    hidden_gradient_ = handed_on ? hidden : next_hidden_gradient_;
    input_ = next_input_;
  }
  void leave_hidden_gradient() {
    const auto [m, gpu] = leaving_gradient_;
    leaving_gradient_ = {-1, {}};
    if (!gpu.valid()) return;
    const Slice host =
        program_.buffer(Tier::host, gpu.bytes, BufferKind::activation_gradient, -1, m);
    program_.copy(gpu, host, -1, m);
    hidden_gradients_[m] = host;
  }
  void fetch_hidden_gradient(const Visit& v) {
    const Visit n = next(v);
    next_hidden_gradient_ = {};
    const bool needs = n.valid && n.layer < U_ - 1;
    if (!needs || (n.layer != v.layer && n.micro_batch == v.micro_batch)) return;
    const Slice held = hidden_gradients_.at(n.micro_batch);
    next_hidden_gradient_ = held;
    if (program_.tier(held) == Tier::gpu) return;
    next_hidden_gradient_ = gpu_activation(BufferKind::activation_gradient, n.layer, n.micro_batch);
    program_.copy(held, next_hidden_gradient_, n.layer, n.micro_batch);
  }

  // -- the end of a step: E1, E2, E3, then the embedding
  void drain() {
    if (program_.updates_wait()) return update_all_now();
    wait_for_all();
    read_state(0, now);
    write_back(2, now);
    blocks_.leave_gradient(0, 0, blocks_.elements(), complete_gradient_, step_);
    update_now(1);
    wait_for_all();
    read_state(0, late);
    write_back(1, now);
    update_now(0);
    wait_for_all();
    read_state(1, late);
    write_back(0, now);
    for (int u = 0; u < std::min(U_, 3); ++u) blocks_.forget_parameters(u);
    update_late(0);
    wait_for_all();
  }
  // The same with the undelayed part of every block still to be applied.
  void update_all_now() {
    wait_for_all();
    read_state(0, now);
    blocks_.leave_gradient(0, 0, blocks_.elements(), complete_gradient_, step_);
    wait_for_all();
    for (int u = 0; u < U_; ++u) {
      read_state(u + 1, now);
      write_back(u - 1, now);
      if (u > 0) blocks_.forget_parameters(u - 1);
      update_now(u);
      wait_for_all();
    }
    read_state(0, late);
    write_back(U_ - 1, now);
    wait_for_all();
    read_state(1, late);
    blocks_.forget_parameters(U_ - 1);
    update_late(0);
    wait_for_all();
  }
  void update_embedding() {
    const int embedding = state_.embedding();
    const Slice gradient = state_.gradient_buffer(Tier::host, embedding);
    const Slice head_gradient =
        state_.gradient_buffer(Tier::host, embedding, BufferKind::head_gradient);
    program_.copy(embed_gradient_, gradient, embedding);
    program_.copy(head_gradient_, head_gradient, embedding);
    wait_for_all();
    state_.finish_update(state_.begin_update(embedding), gradient, head_gradient, step_);
    wait_for_all();
  }

  Program& program_;
  ModelState& state_;
  BlockStates& blocks_;
  const VerticalOptions& options_;
  VerticalOrder order_;
  int step_;
  int U_, M_;  // blocks, micro-batches
  Slice parameters_, next_parameters_;
  Slice input_, next_input_;  // of the visit now and of the next
  Visit leaving_;             // whose output is still on the GPU only
  Slice leaving_gpu_;
  std::map<Key, Slice> outputs_;  // in host memory
  std::map<Key, Slice> on_ssd_;
  std::pair<int, Slice> leaving_gradient_{-1, {}};  // micro-batch; still on the GPU only
  std::map<int, Slice> hidden_gradients_;           // by micro-batch; in host or GPU memory
  Slice hidden_gradient_, next_hidden_gradient_;    // of the visit now and of the next
  Slice gradient_, complete_gradient_;              // of this block, of the one before
  Slice embed_gradient_, head_gradient_;
};

}  // namespace

void emit_bulk_synchronous_step(Program& program, ModelState& state, BlockStates& blocks,
                                const VerticalOptions& options, int step) {
  BulkSynchronousStep(program, state, blocks, options, step).emit();
}

}  // namespace spillway
