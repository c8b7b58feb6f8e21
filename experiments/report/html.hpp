// Markup of a page. Text from files passes escaped() on its way into markup, here and nowhere else:
// whoever wrote a trace or a folder cannot put markup into a page about it.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace spillway {

// The text as it stands, between tags and in quoted attributes: & < > " ' as entities, and what
// cannot be seen (control characters, changes of the writing direction) spelled out.
std::string escaped(std::string_view text);

struct Cell {
  std::string text;
  // What the column is sorted by, and that it stands on the right; nothing: sorted by its text.
  std::optional<double> value = {};
  std::optional<double> share = {};  // 0 .. 1: drawn as a bar behind the text
};
// A number as a cell, in words of the caller.
Cell number_cell(double value, std::string text);

struct PageTable {
  struct Column {
    std::string title;
    bool is_number = false;
    std::string hint = {};  // shown where the mouse rests on the title
  };
  std::string caption;  // may be empty
  std::vector<Column> columns;
  std::vector<std::vector<Cell>> rows;
};
// A table whose columns page/core.js sorts when a title is clicked.
std::string table_html(const PageTable& table);

// <p class="note"> for every note.
std::string notes_html(const std::vector<std::string>& notes);

// A part of a page, with a heading of its own and a place in the list of contents.
struct Section {
  std::string id;  // letters and dashes
  std::string title;
  std::string body;  // markup
};

// Data that scripts of the page read by name.
struct Blob {
  std::string name;   // letters, digits and dashes
  std::string bytes;  // as they are; packed() on their way into the page
};

struct Page {
  std::string title, subtitle;
  std::string head;  // markup before the sections: the summary
  std::vector<Section> sections;
  std::vector<Blob> blobs;
};

// One document without anything outside of it. A content security policy in it lets the page's own
// scripts run, known by their hashes, and forbids everything else: other scripts, the network,
// frames and forms.
std::string page_html(const Page& page);

// Whether a file begins as page_html's documents do.
bool is_report(std::string_view head);

}  // namespace spillway
