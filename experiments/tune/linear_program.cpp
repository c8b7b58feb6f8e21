#include "experiments/tune/linear_program.hpp"

#include <glpk.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace spillway {

namespace {

// GLPK's memory belongs to the thread that first used it: given back when the thread ends.
struct GlpkThread {
  ~GlpkThread() { glp_free_env(); }
};

}  // namespace

Expression& Expression::add(int column, double coefficient) {
  if (coefficient != 0) terms_.push_back({column, coefficient});
  return *this;
}

Expression& Expression::add(const Expression& other, double factor) {
  for (const Term& term : other.terms_) add(term.column, term.coefficient * factor);
  constant_ += other.constant_ * factor;
  return *this;
}

Expression& Expression::add_constant(double constant) {
  constant_ += constant;
  return *this;
}

struct LinearProgram::Glpk {
  Glpk() : problem(glp_create_prob(), &glp_delete_prob) {
    static thread_local const GlpkThread thread;
    (void)thread;
    glp_set_obj_dir(problem.get(), GLP_MIN);
  }
  std::unique_ptr<glp_prob, void (*)(glp_prob*)> problem;
  std::vector<double> scale;  // by row: what its numbers were divided by
  std::vector<double> sums;   // by column, of the row that is being put together
  std::vector<int> indices;
  std::vector<double> values;
};

LinearProgram::LinearProgram() : glpk_(std::make_unique<Glpk>()) {}
LinearProgram::~LinearProgram() = default;

int LinearProgram::column(double most, double cost) {
  glp_prob* const problem = glpk_->problem.get();
  const int column = glp_add_cols(problem, 1);
  const bool is_open = most == std::numeric_limits<double>::infinity();
  const int type = is_open ? GLP_LO : most > 0 ? GLP_DB : GLP_FX;
  glp_set_col_bnds(problem, column, type, 0, is_open ? 0 : std::max(most, 0.0));
  glp_set_obj_coef(problem, column, cost);
  return column;
}

int LinearProgram::row(const Expression& expression, bool is_equal) {
  glp_prob* const problem = glpk_->problem.get();
  glpk_->sums.resize(static_cast<std::size_t>(glp_get_num_cols(problem)) + 1, 0);
  glpk_->indices.assign(1, 0);
  glpk_->values.assign(1, 0);
  double largest = 0;
  for (const Expression::Term& term : expression.terms()) {
    double& sum = glpk_->sums[static_cast<std::size_t>(term.column)];
    if (sum == 0) glpk_->indices.push_back(term.column);
    sum += term.coefficient;
    // Terms that cancel out leave their column in the row.
    if (sum == 0) sum = std::numeric_limits<double>::min();
  }
  for (std::size_t k = 1; k < glpk_->indices.size(); ++k) {
    double& sum = glpk_->sums[static_cast<std::size_t>(glpk_->indices[k])];
    largest = std::max(largest, std::abs(sum));
    glpk_->values.push_back(sum);
    sum = 0;
  }
  const double scale = largest > 0 ? largest : 1;
  for (double& value : glpk_->values) value /= scale;
  const int row = glp_add_rows(problem, 1);
  const double bound = -expression.constant() / scale;
  glp_set_row_bnds(problem, row, is_equal ? GLP_FX : GLP_UP, bound, bound);
  glp_set_mat_row(problem, row, static_cast<int>(glpk_->indices.size()) - 1, glpk_->indices.data(),
                  glpk_->values.data());
  glpk_->scale.push_back(scale);
  return row;
}

int LinearProgram::at_most_zero(const Expression& expression) { return row(expression, false); }
int LinearProgram::equals_zero(const Expression& expression) { return row(expression, true); }

Feasibility LinearProgram::solve() {
  glp_prob* const problem = glpk_->problem.get();
  glp_smcp settings;
  glp_init_smcp(&settings);
  settings.msg_lev = GLP_MSG_OFF;
  settings.it_lim = 10'000;  // a hundred times what such programs take
  settings.tol_bnd = settings.tol_dj = 1e-9;
  glp_smcp dual = settings;
  dual.meth = GLP_DUALP;
  const auto is_optimal = [&](const glp_smcp& with) {
    return glp_simplex(problem, &with) == 0 && glp_get_status(problem) == GLP_OPT;
  };
  if (is_optimal(dual)) return Feasibility::optimal;
  // Numbers far apart may lead the method astray: another one, from another start, must agree, or
  // else exact arithmetic decides.
  const bool seems_infeasible = glp_get_status(problem) == GLP_NOFEAS;
  const int prints = glp_term_out(GLP_OFF);
  glp_scale_prob(problem, GLP_SF_AUTO);
  glp_adv_basis(problem, 0);
  Feasibility found = Feasibility::unknown;
  if (is_optimal(settings)) {
    found = Feasibility::optimal;
  } else if (seems_infeasible && glp_get_status(problem) == GLP_NOFEAS) {
    found = Feasibility::infeasible;
  } else {
    glp_std_basis(problem);
    if (glp_exact(problem, &settings) == 0) {
      const int status = glp_get_status(problem);
      if (status == GLP_OPT) found = Feasibility::optimal;
      if (status == GLP_NOFEAS) found = Feasibility::infeasible;
    }
  }
  glp_term_out(prints);
  return found;
}

double LinearProgram::cost() const { return glp_get_obj_val(glpk_->problem.get()); }

double LinearProgram::value(int column) const {
  return glp_get_col_prim(glpk_->problem.get(), column);
}

double LinearProgram::value(const Expression& expression) const {
  double sum = expression.constant();
  for (const Expression::Term& term : expression.terms())
    sum += term.coefficient * value(term.column);
  return sum;
}

double LinearProgram::worth(int row) const {
  return -glp_get_row_dual(glpk_->problem.get(), row) /
         glpk_->scale[static_cast<std::size_t>(row) - 1];
}

}  // namespace spillway
