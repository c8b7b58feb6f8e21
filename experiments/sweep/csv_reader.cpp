#include "experiments/sweep/csv_reader.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "base/errors.hpp"

namespace spillway {

namespace {

class CsvReader {
 public:
  CsvReader(const std::string& text, const std::string& origin) : text_(text), origin_(origin) {}

  bool done() const { return at_ >= text_.size(); }
  int line() const { return line_; }

  std::vector<std::string> row() {
    std::vector<std::string> cells;
    const int begun = line_;
    do {
      cells.push_back(cell(begun));
    } while (take(','));
    take('\r');
    if (!done() && !take('\n'))
      fail(begun, "something follows a closing quote", "the file is damaged: write it again");
    ++line_;
    return cells;
  }

  [[noreturn]] void fail(int line, const std::string& what, const std::string& hint) const {
    throw InputError(origin_, line, what, hint);
  }

 private:
  bool take(char wanted) {
    if (done() || text_[at_] != wanted) return false;
    ++at_;
    return true;
  }

  std::string cell(int begun) {
    if (take('"')) return quoted_cell(begun);
    const std::size_t end = std::min(text_.find_first_of(",\r\n", at_), text_.size());
    std::string cell = text_.substr(at_, end - at_);
    at_ = end;
    return cell;
  }

  std::string quoted_cell(int begun) {
    std::string cell;
    while (!done()) {
      const char c = text_[at_++];
      if (c == '"' && !take('"')) return cell;
      if (c == '\n') ++line_;
      cell += c;
    }
    fail(begun, "a quote is not closed", "the file is cut off: write it again");
  }

  const std::string& text_;
  const std::string& origin_;
  std::size_t at_ = 0;
  int line_ = 1;
};

}  // namespace

SweepTable parse_csv(const std::string& text, const std::string& origin) {
  CsvReader reader(text, origin);
  if (reader.done()) reader.fail(1, "the file is empty", "write it again");
  SweepTable table;
  table.columns = reader.row();
  std::set<std::string> names;
  for (const std::string& name : table.columns) {
    if (!names.insert(name).second)
      reader.fail(1, fmt::format("there are two columns {}", name), "keep one of them");
  }
  while (!reader.done()) {
    const int line = reader.line();
    table.rows.push_back(reader.row());
    if (table.rows.back().size() != table.columns.size()) {
      reader.fail(line,
                  fmt::format("{} cells, where the header names {}", table.rows.back().size(),
                              table.columns.size()),
                  "the file is damaged: write it again");
    }
  }
  return table;
}

}  // namespace spillway
