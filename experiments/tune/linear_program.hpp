// A small linear program: least cost over columns, subject to rows of expressions in them. Solved
// by GLPK's simplex method.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

namespace spillway {

// A sum of columns, each times a coefficient, and of a constant.
class Expression {
 public:
  Expression() = default;
  explicit Expression(double constant) : constant_(constant) {}

  struct Term {
    int column = 0;
    double coefficient = 0;
  };
  Expression& add(int column, double coefficient = 1);
  Expression& add(const Expression& other, double factor = 1);
  Expression& add_constant(double constant);

  const std::vector<Term>& terms() const { return terms_; }
  double constant() const { return constant_; }
  bool is_zero() const { return terms_.empty() && constant_ == 0; }

 private:
  std::vector<Term> terms_;  // a column may be there several times
  double constant_ = 0;
};

enum class Feasibility : std::uint8_t {
  optimal,
  infeasible,  // no values of the columns meet all rows
  unknown      // the simplex method gave up: numbers too far apart
};

// Not for several threads at once.
class LinearProgram {
 public:
  LinearProgram();
  ~LinearProgram();
  LinearProgram(const LinearProgram&) = delete;
  LinearProgram& operator=(const LinearProgram&) = delete;

  // A column of at least 0 and at most `most`, which may be infinite. Returns its number.
  int column(double most, double cost = 0);
  // Rows. Return their numbers.
  int at_most_zero(const Expression& expression);
  int equals_zero(const Expression& expression);

  Feasibility solve();
  double cost() const;  // of the optimum
  double value(int column) const;
  double value(const Expression& expression) const;
  // How much the cost falls for each unit by which at_most_zero's bound is raised, at the optimum.
  double worth(int row) const;

 private:
  struct Glpk;
  int row(const Expression& expression, bool is_equal);
  std::unique_ptr<Glpk> glpk_;
};

}  // namespace spillway
