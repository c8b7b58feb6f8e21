// Documents that are packed into sequences, and targets that do not count.
//
// With borders kept, a token's loss is what it is where its document is trained alone. The step's
// gradient is that of a mean over all targets that count, so it is the sum of the gradients of the
// documents alone, each times its share of them.
#include <catch2/catch.hpp>
#include <cmath>

#include "tests/exec/cpu/model_fixture.hpp"
#include "tests/exec/document_batches.hpp"

using namespace spillway;
using test::PackedDocuments;

namespace {

constexpr std::int64_t known_tokens = 19, packed_length = 24, packed_sequences = 2;

Problem packed_problem(const std::string& kind) {
  Problem problem = kind == "gpt" ? gpt_problem(known_tokens, 2, 16, 2, packed_length,
                                                packed_sequences, packed_sequences)
                                  : llama_problem(kind, known_tokens, 2, 16, 2, packed_length,
                                                  packed_sequences, packed_sequences);
  if (kind == "mistral") problem.model.window = 4;
  return problem;
}

// The largest difference, of what is at most about `size`.
double relative_error(const std::vector<float>& a, const std::vector<double>& b) {
  REQUIRE(a.size() == b.size());
  double most = 0, size = 0;
  for (std::size_t i = 0; i < b.size(); ++i) {
    most = std::max(most, std::abs(static_cast<double>(a[i]) - b[i]));
    size = std::max(size, std::abs(b[i]));
  }
  REQUIRE(size > 0);
  return most / size;
}

void add_share(std::vector<double>& to, const std::vector<float>& from, double factor) {
  to.resize(from.size());
  for (std::size_t i = 0; i < from.size(); ++i) to[i] += factor * static_cast<double>(from[i]);
}

// All of them in sequences, and each alone in a sequence of its own length.
void check_packed(const Problem& problem, const PackedDocuments& packed, SavedMask available) {
  const Units parameters = random_parameters(problem.model, 5);
  StepOptions options;
  options.available = available;
  options.starts = &packed.starts;
  const ModelStepResult together =
      run_step(problem, parameters, packed.tokens, packed.targets, options);
  CHECK(together.memory_respected);
  options.starts = nullptr;

  std::vector<std::vector<double>> gradients(together.gradients.size());
  std::vector<double> head_gradient, token_losses(packed.tokens.size());
  for (const auto& [first, length] : packed.documents()) {
    const auto begin = static_cast<std::ptrdiff_t>(first), end = begin + length;
    const std::vector<std::int32_t> tokens(packed.tokens.begin() + begin,
                                           packed.tokens.begin() + end);
    const std::vector<std::int32_t> targets(packed.targets.begin() + begin,
                                            packed.targets.begin() + end);
    const std::int64_t count = counted(targets);
    if (count == 0) continue;
    Problem alone = problem;
    alone.workload.sequence = length;
    alone.workload.batch = alone.workload.micro_batch = 1;
    const ModelStepResult result = run_step(alone, parameters, tokens, targets, options);
    std::copy(result.token_losses.begin(), result.token_losses.end(), token_losses.begin() + begin);
    const double share = static_cast<double>(count) / static_cast<double>(counted(packed.targets));
    for (std::size_t unit = 0; unit < gradients.size(); ++unit)
      add_share(gradients[unit], result.gradients[unit], share);
    add_share(head_gradient, result.head_gradient, share);
  }
  for (std::size_t row = 0; row < token_losses.size(); ++row) {
    INFO("row " << row);
    CHECK(together.token_losses[row] == Approx(token_losses[row]).margin(1e-5));
  }
  for (std::size_t unit = 0; unit < gradients.size(); ++unit) {
    INFO("unit " << unit);
    CHECK(relative_error(together.gradients[unit], gradients[unit]) < 1e-5);
  }
  CHECK(relative_error(together.head_gradient, head_gradient) < 1e-5);
}

}  // namespace

TEST_CASE("Packed documents train as each of them alone") {
  const std::uint64_t seed = 40;
  INFO("seed " << seed);
  for (const std::string kind : {"gpt", "llama", "qwen2", "qwen3", "mistral"}) {
    INFO(kind);
    const Problem problem = packed_problem(kind);
    for (const std::int64_t longest : {1, 4, 16, 48}) {
      if (longest == 1 && kind != "gpt") continue;
      INFO("documents of up to " << longest);
      PackedDocuments packed(known_tokens, packed_length, packed_sequences, longest, seed);
      if (longest == 1) packed.count_all();  // no document of a token has a target of its own
      for (const SavedMask available : {saved_all(problem.model), saved_none})
        check_packed(problem, packed, available);
    }
  }
}

TEST_CASE("Packed documents train as alone, whatever is saved and in any micro-batches") {
  for (const std::string kind : {"gpt", "qwen3", "mistral"}) {
    INFO(kind);
    Problem problem = packed_problem(kind);
    const PackedDocuments packed(known_tokens, packed_length, packed_sequences, 10, 41);
    const Units parameters = random_parameters(problem.model, 6);
    StepOptions options;
    options.starts = &packed.starts;
    const ModelStepResult whole =
        run_step(problem, parameters, packed.tokens, packed.targets, options);
    problem.workload.micro_batch = 1;
    for (unsigned mask = 0; mask <= saved_all(problem.model); mask += 37) {
      options.available = static_cast<SavedMask>(mask);
      CHECK(
          same_bits(whole, run_step(problem, parameters, packed.tokens, packed.targets, options)));
    }
  }
}

TEST_CASE("Packed documents in bf16 train as in fp32, to rounding, whatever is saved") {
  // Sums of gradients in fp32 and, of a single micro-batch, in bf16.
  for (const std::string kind : {"gpt", "qwen3", "mistral"}) {
    for (const GradientWidth width : {GradientWidth::bits32, GradientWidth::bits16}) {
      INFO(kind << (width == GradientWidth::bits32 ? ", fp32 sums" : ", bf16 sums"));
      Problem problem = packed_problem(kind);
      const PackedDocuments packed(known_tokens, packed_length, packed_sequences, 10, 44);
      const Units parameters = random_parameters(problem.model, 13);
      StepOptions options;
      options.starts = &packed.starts;
      const auto run = [&] {
        return run_step(problem, parameters, packed.tokens, packed.targets, options);
      };
      const ModelStepResult exact = run();
      problem.workload.precision = Precision::bf16;
      problem.workload.gradient = width;
      const ModelStepResult rounded = run();
      CHECK(rounded.memory_respected);
      for (std::size_t row = 0; row < exact.token_losses.size(); ++row)
        CHECK(rounded.token_losses[row] == Approx(exact.token_losses[row]).margin(0.4));
      for (std::size_t unit = 0; unit < exact.gradients.size(); ++unit) {
        double squares = 0, differences = 0;
        for (std::size_t i = 0; i < exact.gradients[unit].size(); ++i) {
          const auto g = static_cast<double>(exact.gradients[unit][i]);
          squares += g * g;
          differences += std::pow(static_cast<double>(rounded.gradients[unit][i]) - g, 2);
        }
        INFO("unit " << unit);
        CHECK(std::sqrt(differences / squares) < 0.08);
      }
      for (const SavedMask available : {saved_none, gpt_saved::qkv}) {
        options.available = available;
        CHECK(same_bits(rounded, run()));
      }
    }
  }
}

TEST_CASE("Borders that are none change no bit") {
  for (const std::string kind : {"gpt", "llama", "qwen3", "mistral"}) {
    INFO(kind);
    const Problem problem = packed_problem(kind);
    const Units parameters = random_parameters(problem.model, 7);
    const auto tokens = random_tokens(problem, 8), targets = random_tokens(problem, 9);
    const std::vector<std::int32_t> starts(tokens.size(), 0);
    StepOptions options;
    const ModelStepResult without = run_step(problem, parameters, tokens, targets, options);
    options.starts = &starts;
    CHECK(same_bits(without, run_step(problem, parameters, tokens, targets, options)));
  }
}

TEST_CASE("A target that does not count has no loss and no gradient") {
  // Of the head: dL/d(hidden) of its row is zero, and so is every difference of the loss; where the
  // target counts, the gradient is what differences say.
  for (const std::string kind : {"gpt", "llama"}) {
    INFO(kind);
    Problem problem = packed_problem(kind);
    problem.trains_on = Backend::cpu;
    const PackedDocuments packed(known_tokens, packed_length, packed_sequences, 8, 42);
    const Units parameters = random_parameters(problem.model, 10);
    const std::vector<float>& head = parameters.back();
    const auto model = make_model_cpu(problem);
    const auto c = static_cast<std::size_t>(problem.model.hidden);
    std::mt19937_64 random(11);
    std::normal_distribution<float> normal;
    std::vector<float> hidden(packed.tokens.size() * c);
    for (float& x : hidden) x = normal(random);
    Guarded scratch(head_scratch_bytes(problem));
    std::vector<float> head_gradient(empty_gradients(problem.model, 0).back());
    const auto run = [&](std::vector<float>& values) {
      std::vector<double> losses(static_cast<std::size_t>(packed_sequences));
      model->head(head.data(), packed.targets.data(), values.data(), head_gradient.data(), true,
                  losses.data(), scratch.data(), nullptr, counted(packed.targets));
      return (losses[0] + losses[1]) / static_cast<double>(counted(packed.targets));
    };
    std::vector<float> gradient = hidden;
    const double loss = run(gradient);
    std::int64_t masked = 0;
    for (std::size_t row = 0; row < packed.targets.size(); ++row) {
      INFO("row " << row << ", target " << packed.targets[row]);
      const bool counts = packed.targets[row] != no_target;
      if (!counts) ++masked;
      double norm = 0, projection = 0;
      std::vector<float> up = hidden, down = hidden;
      for (std::size_t i = row * c; i < (row + 1) * c; ++i) {
        const float step = 0.01f * normal(random);
        up[i] += step;
        down[i] -= step;
        norm += std::abs(static_cast<double>(gradient[i]));
        projection += static_cast<double>(gradient[i]) * static_cast<double>(step);
      }
      const double at_up = run(up), at_down = run(down);
      if (counts) {
        CHECK(norm > 0);
        CHECK((at_up - at_down) / 2 == Approx(projection).epsilon(0.01).margin(1e-6));
      } else {
        CHECK(norm == 0);
        CHECK(at_up == loss);
        CHECK(at_down == loss);
      }
    }
    CHECK(masked > 0);
    CHECK(masked < static_cast<std::int64_t>(packed.targets.size()));
  }
}

TEST_CASE("A document without a target that counts leaves no gradient behind") {
  // Its tokens and, where it is the longest, its last positions are no other document's.
  for (const std::string kind : {"gpt", "llama"}) {
    INFO(kind);
    const Problem problem = packed_problem(kind);
    PackedDocuments packed(known_tokens - 2, packed_length, packed_sequences, 6, 43);
    const auto [first, length] = packed.documents().at(2);
    for (std::int64_t i = 0; i < length; ++i) {
      const auto row = static_cast<std::size_t>(first + i);
      packed.tokens[row] = static_cast<std::int32_t>(known_tokens - 1 - i % 2);
      packed.targets[row] = no_target;
    }
    const Units parameters = random_parameters(problem.model, 12);
    StepOptions options;
    options.starts = &packed.starts;
    const ModelStepResult result =
        run_step(problem, parameters, packed.tokens, packed.targets, options);
    const std::vector<float>& gradient =
        result.gradients[static_cast<std::size_t>(problem.model.layers)];
    const std::int64_t c = problem.model.hidden;
    const auto is_zero = [&](std::int64_t token) {
      const auto row = gradient.begin() + token * c;
      return std::all_of(row, row + c, [](float x) { return x == 0; });
    };
    CHECK(is_zero(known_tokens - 1));
    if (length > 1) CHECK(is_zero(known_tokens - 2));
    CHECK_FALSE(is_zero(packed.tokens[0]));
  }
}
