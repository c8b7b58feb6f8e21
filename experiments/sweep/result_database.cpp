#include "experiments/sweep/result_database.hpp"

#include <fmt/format.h>
#include <sqlite3.h>

#include <charconv>
#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>

#include "base/errors.hpp"

namespace spillway {

namespace {

enum class ColumnType { integer, real, text };

std::optional<std::int64_t> integer_of(const std::string& cell) {
  if (cell == "true" || cell == "false") return cell == "true" ? 1 : 0;
  std::int64_t value = 0;
  const char* end = cell.data() + cell.size();
  const auto [stop, error] = std::from_chars(cell.data(), end, value);
  return error == std::errc() && stop == end ? std::optional(value) : std::nullopt;
}

std::optional<double> real_of(const std::string& cell) {
  double value = 0;
  const char* end = cell.data() + cell.size();
  const auto [stop, error] = std::from_chars(cell.data(), end, value);
  const bool is_number = error == std::errc() && stop == end && std::isfinite(value);
  return is_number ? std::optional(value) : std::nullopt;
}

// The narrowest type that takes every cell; TEXT of a column without any.
ColumnType type_of(const SweepTable& table, std::size_t column) {
  bool any = false, all_whole = true;
  for (const auto& row : table.rows) {
    const std::string& cell = row[column];
    if (cell.empty()) continue;
    any = true;
    if (integer_of(cell)) continue;
    all_whole = false;
    if (!real_of(cell)) return ColumnType::text;
  }
  if (!any) return ColumnType::text;
  return all_whole ? ColumnType::integer : ColumnType::real;
}

std::string quoted_name(const std::string& name) {
  std::string text = "\"";
  for (const char c : name) text += c == '"' ? std::string("\"\"") : std::string(1, c);
  return text + "\"";
}

// A database in memory.
class Database {
 public:
  Database() {
    sqlite3* opened = nullptr;
    const int result = sqlite3_open(":memory:", &opened);
    database_.reset(opened);
    check(result);
  }

  void run(const std::string& sql) {
    check(sqlite3_exec(database_.get(), sql.c_str(), nullptr, nullptr, nullptr));
  }

  void check(int result) const {
    if (result == SQLITE_OK || result == SQLITE_DONE) return;
    throw MachineError(
        fmt::format("SQLite cannot make the database of results: {}",
                    database_ ? sqlite3_errmsg(database_.get()) : sqlite3_errstr(result)),
        "results.csv holds the same table");
  }

  sqlite3* get() const { return database_.get(); }

  std::string bytes() const {
    sqlite3_int64 size = 0;
    const std::unique_ptr<unsigned char, void (*)(void*)> all(
        sqlite3_serialize(database_.get(), "main", &size, 0), sqlite3_free);
    if (!all) check(SQLITE_NOMEM);
    return {reinterpret_cast<const char*>(all.get()), static_cast<std::size_t>(size)};
  }

 private:
  std::unique_ptr<sqlite3, int (*)(sqlite3*)> database_{nullptr, sqlite3_close};
};

class Insertion {
 public:
  Insertion(const Database& database, std::size_t columns) : database_(database) {
    std::string sql = "INSERT INTO results VALUES (?";
    for (std::size_t c = 0; c < columns; ++c) sql += ", ?";
    sqlite3_stmt* prepared = nullptr;
    database.check(sqlite3_prepare_v2(database.get(), (sql + ")").c_str(), -1, &prepared, nullptr));
    statement_.reset(prepared);
  }

  void set_text(int place, const std::string& text) {
    database_.check(sqlite3_bind_text(statement_.get(), place, text.data(),
                                      static_cast<int>(text.size()), SQLITE_STATIC));
  }
  void set(int place, const std::string& cell, ColumnType type) {
    if (cell.empty()) {
      database_.check(sqlite3_bind_null(statement_.get(), place));
    } else if (type == ColumnType::text) {
      set_text(place, cell);
    } else if (const auto whole = integer_of(cell)) {
      database_.check(sqlite3_bind_int64(statement_.get(), place, *whole));
    } else {
      database_.check(sqlite3_bind_double(statement_.get(), place, *real_of(cell)));
    }
  }
  void run() {
    database_.check(sqlite3_step(statement_.get()));
    database_.check(sqlite3_reset(statement_.get()));
  }

 private:
  const Database& database_;
  std::unique_ptr<sqlite3_stmt, int (*)(sqlite3_stmt*)> statement_{nullptr, sqlite3_finalize};
};

const char* name_of(ColumnType type) {
  return type == ColumnType::integer ? "INTEGER" : type == ColumnType::real ? "REAL" : "TEXT";
}

}  // namespace

std::string to_sqlite(const SweepTable& table) {
  std::vector<ColumnType> types;
  std::string columns = "point TEXT PRIMARY KEY NOT NULL";
  for (std::size_t c = 0; c < table.columns.size(); ++c) {
    types.push_back(type_of(table, c));
    columns += fmt::format(", {} {}", quoted_name(table.columns[c]), name_of(types.back()));
  }
  Database database;
  database.run("CREATE TABLE results (" + columns + ")");
  database.run("BEGIN");
  Insertion insertion(database, table.columns.size());
  for (std::size_t r = 0; r < table.rows.size(); ++r) {
    insertion.set_text(1, table.points[r]);
    for (std::size_t c = 0; c < types.size(); ++c)
      insertion.set(static_cast<int>(c) + 2, table.rows[r][c], types[c]);
    insertion.run();
  }
  database.run("COMMIT");
  return database.bytes();
}

}  // namespace spillway
