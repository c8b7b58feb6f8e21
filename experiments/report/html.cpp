#include "experiments/report/html.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/errors.hpp"
#include "base/text.hpp"
#include "base/units.hpp"
#include "experiments/report/packed.hpp"

namespace spillway {

namespace embedded {
// experiments/report/page/*
const std::vector<std::pair<std::string, std::string>>& report_files();
const std::vector<std::pair<std::string, std::string>>& report_files_sha256();
}  // namespace embedded

namespace {

constexpr std::string_view beginning = "<!doctype html>\n<!-- made by spillway report -->\n";

// In the order in which the page runs them.
constexpr std::array<const char*, 7> scripts = {"core.js",       "timeline.js", "gantt.js",
                                                "gantt_view.js", "charts.js",   "data_table.js",
                                                "start.js"};

const std::string& of_name(const std::vector<std::pair<std::string, std::string>>& files,
                           std::string_view name) {
  for (const auto& [file, text] : files) {
    if (file == name) return text;
  }
  bug("the page's file is compiled in", __FILE__, __LINE__, std::string(name));
}

std::string from_hex(std::string_view digits) {
  const auto value = [](char digit) { return digit <= '9' ? digit - '0' : digit - 'a' + 10; };
  std::string bytes;
  for (std::size_t i = 0; i + 1 < digits.size(); i += 2)
    bytes += static_cast<char>(value(digits[i]) * 16 + value(digits[i + 1]));
  return bytes;
}

std::string security_policy() {
  std::string hashes;
  for (const char* script : scripts)
    hashes += fmt::format(" 'sha256-{}'",
                          base64(from_hex(of_name(embedded::report_files_sha256(), script))));
  return "default-src 'none'; script-src" + hashes +
         "; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'";
}

// Settings of a policy, a word without spaces, may be broken after each of its commas.
std::string with_breaks(const std::string& html) {
  std::string text;
  for (std::size_t i = 0; i < html.size(); ++i) {
    text += html[i];
    if (html[i] == ',' && i + 1 < html.size() && html[i + 1] != ' ') text += "<wbr>";
  }
  return text;
}

std::string cell_html(const Cell& cell, bool is_number) {
  std::string attributes = is_number ? " class=\"number\"" : "";
  if (cell.value) attributes += fmt::format(" data-value=\"{:.17g}\"", *cell.value);
  std::string text = is_number ? escaped(cell.text) : with_breaks(escaped(cell.text));
  if (cell.share)
    text = fmt::format("<span class=\"bar\" style=\"background-size:{:.2f}% 100%\">{}</span>",
                       100 * std::clamp(*cell.share, 0.0, 1.0), text);
  return fmt::format("<td{}>{}</td>", attributes, text);
}

std::string contents_html(const std::vector<Section>& sections) {
  std::string text = "<nav aria-label=\"Contents\"><ul>\n";
  for (const Section& section : sections)
    text += fmt::format("<li><a href=\"#{}\">{}</a></li>\n", section.id, escaped(section.title));
  return text + "</ul></nav>\n";
}

std::string footer_html() {
  return "<footer><p>Made by spillway " SPILLWAY_VERSION
         ". This page stands alone: it loads nothing, and opens without a network.</p></footer>\n";
}

}  // namespace

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : printable(text)) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

Cell number_cell(double value, std::string text) { return {std::move(text), value, {}}; }

std::string table_html(const PageTable& table) {
  std::string text = "<div class=\"scroll\"><table class=\"sortable\">\n";
  if (!table.caption.empty())
    text += fmt::format("<caption>{}</caption>\n", escaped(table.caption));
  text += "<thead><tr>";
  for (const PageTable::Column& column : table.columns)
    text +=
        fmt::format("<th scope=\"col\"{}{}>{}</th>", column.is_number ? " class=\"number\"" : "",
                    column.hint.empty() ? "" : " title=\"" + escaped(column.hint) + "\"",
                    escaped(column.title));
  text += "</tr></thead>\n<tbody>\n";
  for (const std::vector<Cell>& row : table.rows) {
    SPILLWAY_ASSERT(row.size() == table.columns.size());
    text += "<tr>";
    for (std::size_t c = 0; c < row.size(); ++c)
      text += cell_html(row[c], table.columns[c].is_number);
    text += "</tr>\n";
  }
  return text + "</tbody></table></div>\n";
}

std::string notes_html(const std::vector<std::string>& notes) {
  std::string text;
  for (const std::string& note : notes)
    text += fmt::format("<p class=\"note\">{}</p>\n", escaped(note));
  return text;
}

std::string page_html(const Page& page) {
  std::string body = fmt::format(
      "<body>\n<header><h1>{}</h1><p class=\"subtitle\">{}</p></header>\n"
      "<noscript><p class=\"note\">Scripts are off: tables are there, timelines and charts are "
      "not.</p></noscript>\n<p id=\"trouble\" role=\"alert\" hidden></p>\n",
      escaped(page.title), escaped(page.subtitle));
  body += contents_html(page.sections) + "<main>\n" + page.head;
  for (const Section& section : page.sections)
    body += fmt::format(
        "<section id=\"{0}\" aria-labelledby=\"{0}-title\">\n<h2 id=\"{0}-title\">"
        "{1}</h2>\n{2}</section>\n",
        section.id, escaped(section.title), section.body);
  body += "</main>\n";
  std::string data;
  for (const Blob& blob : page.blobs)
    data += fmt::format("<script type=\"application/octet-stream\" id=\"blob-{}\">{}</script>\n",
                        blob.name, packed(blob.bytes));
  const auto& files = embedded::report_files();
  std::string code;
  for (const char* script : scripts)
    code += fmt::format("<script>{}</script>\n", of_name(files, script));
  const std::string head = fmt::format(
      "{}<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta "
      "http-equiv=\"Content-Security-Policy\" content=\"{}\">\n<meta name=\"viewport\" "
      "content=\"width=device-width, initial-scale=1\">\n<meta name=\"color-scheme\" "
      "content=\"light dark\">\n<title>{}</title>\n<style>\n{}</style>\n</head>\n",
      beginning, security_policy(), escaped(page.title), of_name(files, "page.css"));
  return head + body + footer_html() + data + code + "</body>\n</html>\n";
}

bool is_report(std::string_view head) { return head.starts_with(beginning); }

}  // namespace spillway
