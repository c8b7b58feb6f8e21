// Builds the rows of the table of settings (setting_table.cpp): how a setting is written, read and
// shown follows from the type of the variable that it is kept in.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <concepts>

#include "base/errors.hpp"
#include "experiments/train/train_settings.hpp"

namespace spillway::setting_rows {

using S = TrainSettings;
using Texts = std::vector<std::string>;

// Of a setting that is given more than once the last one holds.
template <class Number>
Number number_of(const std::string& key, const Texts& texts, const char* what) {
  const std::string& text = texts.back();
  const std::size_t sign = text.size() > 1 && text[0] == '+' ? 1 : 0;
  const char* const end = text.data() + text.size();
  Number number{};
  const auto [stop, error] = std::from_chars(text.data() + sign, end, number);
  if (error == std::errc() && stop == end) return number;
  throw InputError(Setting{key, text} + Message(fmt::format(" is not {}", what)));
}

template <class Integer>
Integer count_of(const std::string& key, const Texts& texts) {
  return number_of<Integer>(key, texts, "a whole number, or it is too large");
}

inline double real_of(const std::string& key, const Texts& texts) {
  const double number = number_of<double>(key, texts, "a number");
  if (std::isfinite(number)) return number;
  throw InputError(Setting{key, texts.back()} + " is not a number");
}

inline bool flag_of(const std::string& key, const Texts& texts) {
  if (texts.back() == "true") return true;
  if (texts.back() == "false") return false;
  throw InputError(Setting{key, texts.back()} + " is neither true nor false");
}

inline std::string one_of(const std::string& key, const Texts& texts, const Texts& choices) {
  const std::string& text = texts.back();
  if (std::find(choices.begin(), choices.end(), text) != choices.end()) return text;
  throw InputError(Setting{key, text} +
                   Message(fmt::format(" is none of {}", fmt::join(choices, ", "))));
}

inline SettingForm form_of(const std::string&) { return SettingForm::text; }
inline SettingForm form_of(const std::optional<std::string>&) { return SettingForm::text; }
inline SettingForm form_of(const Texts&) { return SettingForm::list; }
inline SettingForm form_of(bool) { return SettingForm::flag; }
inline SettingForm form_of(double) { return SettingForm::number; }
inline SettingForm form_of(std::uint64_t) { return SettingForm::large; }
template <class Integer>
requires std::same_as<Integer, int> || std::same_as<Integer, std::int64_t> SettingForm
form_of(Integer) {
  return SettingForm::whole;
}
template <class Integer>
SettingForm form_of(const std::optional<Integer>&) {
  return SettingForm::whole;
}

inline void read_into(std::string& to, const std::string&, const Texts& texts) {
  to = texts.back();
}
inline void read_into(Texts& to, const std::string&, const Texts& texts) { to = texts; }
inline void read_into(bool& to, const std::string& key, const Texts& texts) {
  to = flag_of(key, texts);
}
inline void read_into(double& to, const std::string& key, const Texts& texts) {
  to = real_of(key, texts);
}
template <std::integral Integer>
void read_into(Integer& to, const std::string& key, const Texts& texts) {
  to = count_of<Integer>(key, texts);
}
template <class T>
void read_into(std::optional<T>& to, const std::string& key, const Texts& texts) {
  read_into(to.emplace(), key, texts);
}

inline std::string shown(const std::string& value) { return value; }
inline std::string shown(const Texts&) { return ""; }
template <class T>
std::string shown(const std::optional<T>&) {
  return "";
}
inline std::string shown(bool value) { return value ? "true" : "false"; }
template <class Number>
std::string shown(Number value) {
  return fmt::format("{}", value);
}

// Adds rows to the table, group by group.
class Table {
 public:
  void group(SettingGroup group) { group_ = group; }

  TrainSetting& add(const char* key, Message help) {
    TrainSetting setting;
    setting.key = key;
    setting.group = group_;
    setting.help = std::move(help);
    all.push_back(std::move(setting));
    return all.back();
  }
  // Kept in the variable that `access` finds, whose default is the setting's.
  template <class Access>
  TrainSetting& add(const char* key, Access access, Message help) {
    TrainSetting& setting = add(key, std::move(help));
    TrainSettings usual;
    setting.form = form_of(access(usual));
    setting.usual = shown(access(usual));
    setting.read = [key, access](S& s, const Texts& texts) { read_into(access(s), key, texts); };
    return setting;
  }
  // One of `choices`.
  template <class Access>
  TrainSetting& choice(const char* key, Access access, Texts choices, Message help) {
    TrainSetting& setting = add(key, access, std::move(help));
    setting.choices = choices;
    setting.read = [key, access, choices = std::move(choices)](S& s, const Texts& texts) {
      access(s) = one_of(key, texts, choices);
    };
    return setting;
  }
  // A number from `least` to `most`.
  template <class Access>
  TrainSetting& range(const char* key, Access access, double least, double most, const char* words,
                      Message help) {
    TrainSetting& setting = add(key, access, std::move(help));
    setting.read = [=, read = setting.read](S& s, const Texts& texts) {
      read(s, texts);
      const auto value = static_cast<double>(access(s));
      if (!(value >= least && value <= most))
        throw InputError(Setting{key, texts.back()} + Message(fmt::format(" is not {}", words)));
    };
    return setting;
  }
  TrainSetting& workload(const char* key) {
    const WorkloadField* const field = find_workload_field(key);
    TrainSetting& setting =
        add(key, Message((field->is_count() ? "" : field->values + ": ") + field->help));
    setting.form = field->is_count() ? SettingForm::whole : SettingForm::text;
    setting.usual = field->usual;
    setting.read = [field](S& s, const Texts& texts) {
      Workload scratch;
      field->read(scratch, texts.back());
      s.problem.workload[field->key] = texts.back();
    };
    return setting;
  }

  std::vector<TrainSetting> all;

 private:
  SettingGroup group_ = SettingGroup::model;
};

}  // namespace spillway::setting_rows
