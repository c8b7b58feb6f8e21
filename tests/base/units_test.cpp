#include "base/units.hpp"

#include <catch2/catch.hpp>

#include <cstdint>
#include <limits>
#include <string>

#include "base/errors.hpp"

using namespace spillway;

namespace {

template <class Parse>
InputError error_of(Parse parse, const std::string& text) {
  try {
    parse(text);
  } catch (const InputError& error) {
    return error;
  }
  FAIL("\"" << text << "\" was accepted");
  throw std::logic_error("not reached");
}

}  // namespace

TEST_CASE("bytes: decimal prefixes are powers of 1000, binary ones of 1024") {
  CHECK(parse_bytes("4096B") == 4096);
  CHECK(parse_bytes("64MB") == 64'000'000);
  CHECK(parse_bytes("64kB") == 64'000);
  CHECK(parse_bytes("64KB") == 64'000);
  CHECK(parse_bytes("64KiB") == 65'536);
  CHECK(parse_bytes("1.5 GiB") == (std::uint64_t{3} << 29));
  CHECK(parse_bytes("  24 GB\t") == 24'000'000'000);
  CHECK(parse_bytes("46.08TB") == 46'080'000'000'000);
  CHECK(parse_bytes("2.4PB") == 2'400'000'000'000'000);
  CHECK(parse_bytes(".5kB") == 500);
  CHECK(parse_bytes("1e3MB") == 1'000'000'000);
  CHECK(parse_bytes("0") == 0);
}

TEST_CASE("bytes: the E of an exabyte is a prefix, an e before digits an exponent") {
  CHECK(parse_bytes("1EB") == 1'000'000'000'000'000'000);
  CHECK(parse_bytes("1E3B") == 1000);
  CHECK(parse_bytes("1E+3 B") == 1000);
}

TEST_CASE("bytes: whole numbers are exact up to 2^64 - 1, one more is too large") {
  CHECK(parse_bytes("18446744073709551615B") == std::numeric_limits<std::uint64_t>::max());
  CHECK(parse_bytes("9007199254740993B") == 9007199254740993);  // 2^53 + 1 is no double
  CHECK_THROWS_AS(parse_bytes("18446744073709551616B"), InputError);
  CHECK_THROWS_AS(parse_bytes("18446744074GB"), InputError);
  CHECK_THROWS_AS(parse_bytes("18.446744073709551616EB"), InputError);
  CHECK_THROWS_AS(parse_bytes("16384PiB"), InputError);
  CHECK(parse_bytes("16383PiB") == std::uint64_t{16383} << 50);
}

TEST_CASE("bytes: a fraction of a larger unit rounds to the nearest byte, of a byte is refused") {
  CHECK(parse_bytes("0.1GiB") == 107374182);  // 107374182.4
  CHECK(parse_bytes("1.0B") == 1);
  CHECK_THROWS_AS(parse_bytes("1.5B"), InputError);
  CHECK_THROWS_AS(parse_bytes("1.5"), InputError);
}

TEST_CASE("bytes: a number without a unit may be bytes or gigabytes, and is neither, but for 0") {
  for (const char* text : {"8", "4096", " 8 ", "1e9", "0.0"}) {
    INFO("text \"" << text << "\"");
    CHECK_THROWS_AS(parse_bytes(text), InputError);
  }
  const InputError error = error_of(parse_bytes, "8");
  CHECK(std::string(error.what()) == "\"8\" is not a size in bytes: the unit is missing");
  CHECK(error.hint() == "write the unit, for example \"8GB\"");
  CHECK(error_of(parse_bytes_per_second, "21").hint() == "write the unit, for example \"21GB/s\"");
}

TEST_CASE("bytes: nothing but a number and a unit") {
  for (const char* text :
       {"",     "  ",        "GB",      "B",      "-1GB",  "+1GB",    "- 1",    "1 2GB",
        "1GBx", "1 GB/s",    "24gb",    "24G",    "24Gb",  "24 gigs", "1..5GB", "1.5.5GB",
        ".",    ".GB",       "1,5GB",   "0x10",   "inf",   "nan",     "infB",   "1e",
        "1eGB", "1e99999GB", "1e400GB", "64 M B", "24GB\n"}) {
    INFO("text \"" << text << "\"");
    CHECK_THROWS_AS(parse_bytes(text), InputError);
  }
}

TEST_CASE("an error names the text, what was expected, why, and an example") {
  const InputError error = error_of(parse_bytes, "24 gigs");
  CHECK(std::string(error.what()) ==
        "\"24 gigs\" is not a size in bytes: \"gigs\" is not one of its units");
  CHECK(error.hint() == "write for example \"24GB\"");
  CHECK(std::string(error_of(parse_bytes, "-1GB").what()) ==
        "\"-1GB\" is not a size in bytes: it is negative");
  CHECK(std::string(error_of(parse_bytes_per_second, "21").what()) ==
        "\"21\" is not a bandwidth: the unit is missing");
  CHECK(error_of(parse_bytes_per_second, "21GB").hint() == "write for example \"21GB/s\"");
  CHECK(error_of(parse_flops_per_second, "1TF").hint() == "write for example \"160TFLOPS\"");
  CHECK(error_of(parse_params_per_second, "1").hint() ==
        "write the unit, for example \"1Gparam/s\"");
  CHECK(error_of(parse_nanoseconds, "5").hint() == "write the unit, for example \"5us\"");
  CHECK(std::string(error_of(parse_nanoseconds, "x").what()) ==
        "\"x\" is not a time: it does not start with a number");
}

TEST_CASE("rates are the doubles nearest to what is written") {
  CHECK(parse_bytes_per_second("21GB/s") == 21e9);
  CHECK(parse_bytes_per_second("800 MB/s") == 800e6);
  CHECK(parse_bytes_per_second("0.1GB/s") == 0.1e9);
  CHECK(parse_bytes_per_second("1GiB/s") == 1073741824.0);
  CHECK(parse_bytes_per_second("307.2GB/s") == 307.2e9);
  CHECK(parse_flops_per_second("160.35TFLOPS") == 160.35e12);
  CHECK(parse_flops_per_second("95 GFLOPS") == 95e9);
  CHECK(parse_flops_per_second("1.2PFLOP/s") == 1.2e15);
  CHECK(parse_params_per_second("1.2Gparam/s") == 1.2e9);
  CHECK(parse_params_per_second("10971428571.428572params/s") == 10971428571.428572);
  CHECK(parse_bytes_per_second("1e-3B/s") == 1e-3);
}

TEST_CASE("a rate with a wrong unit or out of range is refused") {
  CHECK_THROWS_AS(parse_bytes_per_second("21Gb/s"), InputError);
  CHECK_THROWS_AS(parse_bytes_per_second("21GBps"), InputError);
  CHECK_THROWS_AS(parse_bytes_per_second("1e308GB/s"), InputError);
  CHECK_THROWS_AS(parse_bytes_per_second("1e-400B/s"), InputError);
  CHECK_THROWS_AS(parse_bytes_per_second("1e300PiB/s"), InputError);  // infinite with its prefix
  CHECK_THROWS_AS(parse_bytes_per_second("1e-2147483648B/s"), InputError);  // the least int
  CHECK_THROWS_AS(parse_flops_per_second("160 TFLOP"), InputError);
  CHECK_THROWS_AS(parse_flops_per_second("160GB/s"), InputError);
  CHECK_THROWS_AS(parse_params_per_second("1.2G"), InputError);
  CHECK_THROWS_AS(parse_params_per_second("-1Gparam/s"), InputError);
}

TEST_CASE("times are whole nanoseconds") {
  CHECK(parse_nanoseconds("150ns") == 150);
  CHECK(parse_nanoseconds("10us") == 10'000);
  CHECK(parse_nanoseconds("2ms") == 2'000'000);
  CHECK(parse_nanoseconds("0.5s") == 500'000'000);
  CHECK(parse_nanoseconds("0.1 us") == 100);
  CHECK(parse_nanoseconds("0ns") == 0);
  CHECK(parse_nanoseconds("9223372036854775807ns") == std::numeric_limits<std::int64_t>::max());
  for (const char* text : {"9223372036854775808ns", "9223372037s", "9.3e9s", "1.5ns", "-1us", "5",
                           "5m", "5 sec", "10Us", "10kus"}) {
    INFO("text \"" << text << "\"");
    CHECK_THROWS_AS(parse_nanoseconds(text), InputError);
  }
}

TEST_CASE("format: two decimals for bytes, one for rates, the prefix chosen after rounding") {
  CHECK(format_bytes(1.61e9) == "1.61 GB");
  CHECK(format_bytes(0) == "0 B");
  CHECK(format_bytes(999) == "999 B");
  CHECK(format_bytes(1000) == "1.00 kB");
  CHECK(format_bytes(999'994) == "999.99 kB");
  CHECK(format_bytes(999'996) == "1.00 MB");  // not 1000.00 kB
  CHECK(format_bytes(46.08e12) == "46.08 TB");
  CHECK(format_bytes(-2.5e6) == "-2.50 MB");
  CHECK(format_bytes(5e21) == "5000.00 EB");  // the last prefix
  CHECK(format_bytes_per_second(21e9) == "21.0 GB/s");
  CHECK(format_bytes_per_second(0.5e9) == "500.0 MB/s");
  CHECK(format_bytes_per_second(999.96e6) == "1.0 GB/s");
  CHECK(format_flops_per_second(160.35e12) ==
        "160.3 TFLOPS");  // the double nearest to 160.35 lies just below it
  CHECK(format_flops_per_second(160.4e12) == "160.4 TFLOPS");
  CHECK(format_bytes(std::numeric_limits<double>::infinity()) == "inf B");
}

TEST_CASE("sizes as settings have them, and to three digits") {
  CHECK(size_setting(286'500'000'000) == "286.5GB");
  CHECK(size_setting(1'200'000'000'000) == "1.2TB");
  CHECK(size_setting(999) == "999B");
  CHECK(size_setting(0) == "0B");
  CHECK(round_size(286'123'456'789, true) == 287'000'000'000);
  CHECK(round_size(286'123'456'789, false) == 286'000'000'000);
  CHECK(round_size(999'100, true) == 1'000'000);
  CHECK(round_size(999, true) == 999);
  for (const std::uint64_t bytes : {1ULL, 1001ULL, 34'655'744'000ULL, 250'760'277'884ULL})
    CHECK(parse_bytes(size_setting(round_size(bytes, true))) >= bytes);
}

TEST_CASE("format: seconds in the unit that keeps the number below 1000") {
  CHECK(format_seconds(19.86) == "19.86 s");
  CHECK(format_seconds(4.21e-3) == "4.21 ms");
  CHECK(format_seconds(38e-6) == "38 us");
  CHECK(format_seconds(150e-9) == "150 ns");
  CHECK(format_seconds(0) == "0 s");
  CHECK(format_seconds(999.6e-6) == "1.00 ms");  // not 1000 us
  CHECK(format_seconds(0.999996) == "1.00 s");
  CHECK(format_seconds(5785) == "5785.00 s");
  CHECK(format_seconds(-4.21e-3) == "-4.21 ms");
}
