// Policies in Python: a class is registered once; every policy object of C++ has an object of it.
#include "python/policy.hpp"

#include <dlfcn.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "base/errors.hpp"
#include "policies/common/plugin_loader.hpp"
#include "policies/movement/step.hpp"
#include "python/plan.hpp"
#include "python/problem.hpp"

namespace spillway::python {

namespace {

// The order of work while step() runs; used later, it says so.
class LentStep {
 public:
  explicit LentStep(Step& step) : step_(&step) {}
  void end() { step_ = nullptr; }
  Step& get() const {
    if (step_ == nullptr)
      throw InputError("this step was of a step() that has returned",
                       "say the order of work while step() runs");
    return *step_;
  }

 private:
  Step* step_;
};

// What a policy refuses in Python it refuses in C++, too; any other exception passes through.
[[noreturn]] void pass_on(const nb::python_error& error) {
  const nb::object refusal = nb::module_::import_("spillway._errors").attr("InputError");
  if (!error.matches(refusal)) throw error;
  const nb::object value = nb::borrow(error.value());
  throw InputError(nb::cast<std::string>(nb::str(value.attr("message"))),
                   nb::cast<std::string>(nb::str(value.attr("hint"))));
}

template <class Call>
auto in_python(const Call& call) {
  const nb::gil_scoped_acquire lock;
  try {
    return call();
  } catch (const nb::python_error& error) {
    pass_on(error);
  }
}

nb::object value_in_python(const OptionValue& value) {
  return std::visit(
      [](const auto& one) -> nb::object {
        if constexpr (std::is_same_v<std::decay_t<decltype(one)>, std::monostate>)
          return nb::none();
        else
          return nb::cast(one);
      },
      value);
}

// Calls `method` of the object with something that is lent for as long as it runs.
template <class Lent, class Subject>
nb::object call_with(const nb::handle& self, const char* method, Subject& subject,
                     const nb::object& first = {}) {
  const nb::object lent = nb::cast(new Lent(subject), nb::rv_policy::take_ownership);
  const auto end = [&] { nb::cast<Lent&>(lent).end(); };
  try {
    nb::object answer = first.is_valid() ? self.attr(method)(first, lent) : self.attr(method)(lent);
    end();
    return answer;
  } catch (...) {
    end();
    throw;
  }
}

class PythonPolicy : public Policy {
 public:
  explicit PythonPolicy(std::shared_ptr<const DeclaredPolicy> declared)
      : Policy(declared->name, declared->paper, declared->idea), declared_(std::move(declared)) {
    in_python([&] { self_ = nb::handle(declared_->type)().release().ptr(); });
    for (const auto& option : declared_->options) {
      declare(option.about, [this, &option](const std::string& text) {
        OptionValue value;
        if (!option.domain.read(text, value)) return false;
        in_python([&] { self().attr(option.about.name.c_str()) = value_in_python(value); });
        return true;
      });
      set(option.about.name, option.about.default_value);
    }
  }
  ~PythonPolicy() override {
    const nb::gil_scoped_acquire lock;
    self().dec_ref();
  }

  void check(const Problem& problem) const override {
    if (declared_->has_check) in_python([&] { self().attr("check")(nb::cast(problem)); });
  }

  std::vector<PolicyOptions> placements(const Problem& problem) const override {
    if (!declared_->has_placements) return Policy::placements(problem);
    return in_python([&] {
      // By the package: values become texts there.
      const nb::object texts = self().attr("_placement_texts")(nb::cast(problem));
      std::vector<PolicyOptions> all;
      for (const nb::handle one : texts) {
        PolicyOptions& options = all.emplace_back();
        for (const auto [key, value] : nb::cast<nb::dict>(one))
          options[nb::cast<std::string>(key)] = nb::cast<std::string>(value);
      }
      if (all.empty())
        throw InputError("policy " + info().name + ": placements() names no alternative",
                         "one that sets nothing is {}");
      return all;
    });
  }

  Plan plan(const Problem& problem, const Costs& costs) const override {
    return in_python(
        [&] { return plan_in(call_with<LentCosts>(self(), "plan", costs, nb::cast(problem))); });
  }

  void step(Step& step) const override {
    if (!declared_->has_step) return Policy::step(step);
    in_python([&] { call_with<LentStep>(self(), "step", step); });
  }

 private:
  nb::handle self() const { return self_; }

  std::shared_ptr<const DeclaredPolicy> declared_;
  PyObject* self_ = nullptr;
};

nb::object range(int from, int to, int by) {
  return nb::borrow(reinterpret_cast<PyObject*>(&PyRange_Type))(from, to, by);
}

nb::object upward(int first, int count) { return range(first, first + count, 1); }
nb::object downward(int count) { return range(count - 1, -1, -1); }

// Python opens modules for themselves alone; plugins are to find what this one has.
std::vector<std::string> load(const std::string& path) {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&load), &info) != 0 && info.dli_fname != nullptr)
    (void)dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD | RTLD_GLOBAL);
  return load_plugin(path).policies;
}

void bind_step(nb::module_& module) {
  nb::class_<LentStep>(module, "Step", "The order of work of one step, as a policy says it.")
      .def(
          "forward", [](const LentStep& s, int layer, int m) { s.get().forward(layer, m); },
          nb::arg("layer"), nb::arg("micro_batch"),
          "Forward of a layer on a micro-batch. The embedding runs with layer 0; the head and the\n"
          "loss with the last layer.")
      .def(
          "backward", [](const LentStep& s, int layer, int m) { s.get().backward(layer, m); },
          nb::arg("layer"), nb::arg("micro_batch"), "Backward of a layer on a micro-batch.")
      .def(
          "input_gradient",
          [](const LentStep& s, int layer, int m) { s.get().input_gradient(layer, m); },
          nb::arg("layer"), nb::arg("micro_batch"),
          "The part of backward that the layer below waits for. Where there is one stage this is\n"
          "all of backward.")
      .def(
          "weight_gradient",
          [](const LentStep& s, int layer, int m) { s.get().weight_gradient(layer, m); },
          nb::arg("layer"), nb::arg("micro_batch"), "The other part, at any time after it.")
      .def(
          "update",
          [](const LentStep& s, int unit, double begin, double end) {
            s.get().update(unit, {begin, end});
          },
          nb::arg("unit"), nb::arg("begin") = 0.0, nb::arg("end") = 1.0,
          "Applies the gradient of a part of a layer or of an outer() unit, `begin` to `end` of\n"
          "its elements: that of this step once it is complete, else that of the step before.")
      .def(
          "wait", [](const LentStep& s) { s.get().wait(); },
          "The host thread waits until all work said before is done.")
      .def(
          "in_order_of_plan", [](const LentStep& s) { s.get().in_order_of_plan(); },
          "All of the step in the order that the plan's `order` says.")
      .def_prop_ro("layers", [](const LentStep& s) { return s.get().layers(); })
      .def_prop_ro("micro_batches", [](const LentStep& s) { return s.get().micro_batches(); })
      .def_prop_ro("problem", [](const LentStep& s) { return s.get().problem(); })
      .def(
          "upward", [](const LentStep& s) { return upward(0, s.get().layers()); },
          "Layers, the lowest first.")
      .def(
          "downward", [](const LentStep& s) { return downward(s.get().layers()); },
          "Layers, the highest first.")
      .def(
          "ascending", [](const LentStep& s) { return upward(0, s.get().micro_batches()); },
          "Micro-batches in order.")
      .def(
          "snake",
          [](const LentStep& s, int layer) {
            const int count = s.get().micro_batches();
            return layer % 2 == 1 ? downward(count) : upward(0, count);
          },
          nb::arg("layer"), "Micro-batches: ascending in even layers, descending in odd ones.")
      .def(
          "outer",
          [](const LentStep& s) {
            const int first = s.get().embedding();
            return upward(first, s.get().head() - first + 1);
          },
          "The units after the layers: the embedding and, where it is not tied, the head.");
}

DeclaredPolicy::DeclaredOption option_in(const nb::dict& given) {
  const auto text = [&](const char* key) { return nb::cast<std::string>(given[key]); };
  DeclaredPolicy::DeclaredOption option;
  option.domain = option_domain(
      text("kind"), nb::cast<double>(given["least"]), nb::cast<double>(given["most"]),
      nb::cast<std::vector<std::string>>(given["words"]), nb::cast<bool>(given["open"]));
  option.about = {text("name"), text("default"), text("help"),
                  nb::cast<std::vector<std::string>>(given["frugal"]), option.domain.texts};
  return option;
}

void require_default(const std::string& policy, const DeclaredPolicy::DeclaredOption& option) {
  std::vector<std::string> texts = option.about.frugal;
  texts.insert(texts.begin(), option.about.default_value);
  for (const std::string& text : texts) {
    if (!option.domain.texts.holds(text))
      throw InputError("policy " + policy + ": option " + option.about.name + ": " + text +
                           " is not " + option.domain.texts.values,
                       "its default and the values of `frugal` are of its domain");
  }
}

void register_policy(const nb::object& type, const nb::dict& about) {
  const auto text = [&](const char* key) { return nb::cast<std::string>(about[key]); };
  const auto is = [&](const char* key) { return nb::cast<bool>(about[key]); };
  auto declared = std::make_shared<DeclaredPolicy>();
  declared->name = text("name");
  declared->paper = text("paper");
  declared->idea = text("idea");
  declared->has_step = is("has_step");
  declared->has_check = is("has_check");
  declared->has_placements = is("has_placements");
  declared->type = type.ptr();
  for (const nb::handle one : nb::cast<nb::list>(about["options"])) {
    declared->options.push_back(option_in(nb::cast<nb::dict>(one)));
    require_default(declared->name, declared->options.back());
  }
  add_policies({factory_of(declared)}, {"python", text("from"), text("hash")});
}

}  // namespace

PolicyFactory factory_of(std::shared_ptr<const DeclaredPolicy> declared) {
  return
      [declared]() -> std::unique_ptr<Policy> { return std::make_unique<PythonPolicy>(declared); };
}

void bind_policy(nb::module_& module) {
  bind_step(module);
  module.def("register_policy", &register_policy, nb::arg("type"), nb::arg("about"));
  module.def("load_plugin", &load, nb::arg("path"),
             "Loads a shared library with policies; their names.");
}

}  // namespace spillway::python
