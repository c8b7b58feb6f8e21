// Pictures by gnuplot, called as a program and found at run time.
//
// A picture is a template (experiments/plots/*.gp, compiled in), variables, and a table. Its script
// is all three in one: anyone can run it again, and change it. The same input gives the same bytes.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace spillway {

struct Picture {
  std::string name;                                            // of its files, without extension
  std::string kind;                                            // the template
  std::vector<std::pair<std::string, std::string>> variables;  // name -> gnuplot expression
  std::vector<std::string> commands;                           // between common.gp and the template
  std::string data;                                            // what the template plots
  std::string made_by;  // the command it comes from, without the program: "sweep s.toml --out d"

  std::string script() const;  // NAME.gp, which reads NAME.dat and writes NAME.svg or NAME.png
  // What lies beside a picture, so that it can be drawn again: NAME.gp and NAME.dat, by their
  // endings.
  std::vector<std::pair<std::string, std::string>> sources() const;
};

// How the files of Picture::sources() begin.
inline constexpr const char* source_begin = "# Made by: spillway";

// Throws MachineError where there is no gnuplot on the PATH.
void require_gnuplot();

// The bytes of the picture; `format` is svg or png. Throws MachineError.
std::string draw(const Picture& picture, const std::string& format);

// Text as a gnuplot expression. Markup such as {/:Bold ...} works in it.
std::string gnuplot_text(const std::string& text);
// Text whose characters all stand for themselves, to be put among markup.
std::string unmarked(const std::string& text);
// Text that stands for itself as the label of a tick, which is a format for the tick's number.
std::string tick_text(const std::string& text);
// The expression of an array of texts.
std::string text_array(const std::vector<std::string>& texts);

}  // namespace spillway
