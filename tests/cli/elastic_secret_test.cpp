// The secret that the launchers of a run share, as a user gives it.

#include <gmock/gmock.h>
#include <sys/stat.h>

#include <filesystem>

#include "tests/cli/programs.hpp"

namespace capstan::cli {
namespace {

using ::testing::HasSubstr;

const std::string kSecret = "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=";
const std::string kMakes = "(umask 077; head -c 32 /dev/urandom | base64 > rdzv.secret)";

class ElasticSecret : public ::testing::Test {
 protected:
  std::string file(const std::string& text, mode_t mode = 0600) const {
    write_bytes(folder_ / "s", text);
    chmod((folder_ / "s").c_str(), mode);
    return "s";
  }
  /// The sentence of a launch that is refused.
  std::string refusal(std::vector<std::string> words, const std::string& rdzv = "10.0.0.1:29400,10.0.0.2:29400",
                      const std::vector<std::string>& environment = {}) const {
    words.insert(words.begin(), {"launch", "--elastic", "1:2", "-n", "1", "--rdzv", rdzv});
    words.insert(words.end(), {"train", "--config", "absent.json"});
    const ProcessResult result =
        run_capstan(folder_, words, {.environment = environment, .folder = {}, .terminal = false});
    EXPECT_EQ(result.exit_code, 3) << result.err;
    return result.err;
  }
  std::string refusal_of(const std::string& secret_file) const { return refusal({"--rdzv-secret-file", secret_file}); }

  TemporaryFolder folder_;
};

TEST_F(ElasticSecret, IsAskedForWhereOtherHostsMayCall) {
  const std::string asks =
      "launch: --rdzv with other hosts than this one needs a secret, which all launchers and --status "
      "share. This makes one: " +
      kMakes +
      ". Copy it to each host, and give --rdzv-secret-file rdzv.secret, or its text as "
      "CAPSTAN_RDZV_SECRET.";
  EXPECT_THAT(refusal({}), HasSubstr(asks));
  EXPECT_THAT(refusal({}, "127.0.0.1:29400,10.0.0.2:29400"), HasSubstr(asks));
  const ProcessResult status = run_capstan(folder_, {"launch", "--status", "--rdzv", "10.0.0.1:29400"});
  EXPECT_EQ(status.exit_code, 3);
  EXPECT_THAT(status.err, HasSubstr(asks));
}

TEST_F(ElasticSecret, IsMadeByTheCommandThatIsNamed) {
  ASSERT_EQ(run_process({"/bin/sh", "-c", kMakes}, {.environment = {}, .folder = folder_.path(), .terminal = false})
                .exit_code,
            0);
  // The secret is fit: it is the configuration that is not there.
  EXPECT_THAT(refusal_of("rdzv.secret"), HasSubstr("absent.json"));
}

TEST_F(ElasticSecret, IsOfAFileThatNobodyElseMayRead) {
  for (const mode_t mode : {0640, 0604, 0620, 0644}) {
    EXPECT_THAT(
        refusal_of(file(kSecret, mode)),
        HasSubstr("launch: --rdzv-secret-file 's': others than its owner may read or change it. Call chmod 600 s, "
                  "and if they may have read it, make another one: " +
                  kMakes));
  }
  EXPECT_THAT(refusal_of(file(kSecret, 0400)), HasSubstr("absent.json"));
  if (geteuid() != 0) return;
  ASSERT_EQ(chown((folder_ / file(kSecret)).c_str(), 12345, 0), 0);
  EXPECT_THAT(refusal_of("s"), HasSubstr("launch: --rdzv-secret-file 's': belongs to another user, who knows it."));
}

TEST_F(ElasticSecret, IsLongEnough) {
  EXPECT_THAT(refusal_of(file("")), HasSubstr("launch: --rdzv-secret-file 's': is empty, and a secret has at least 32. "
                                              "This makes one: " +
                                              kMakes));
  EXPECT_THAT(refusal_of(file(" \n")), HasSubstr("is empty, and a secret has at least 32."));
  EXPECT_THAT(refusal_of(file(std::string(31, 'x') + "\n")),
              HasSubstr("has 31 characters, and a secret at least 32. This makes one: " + kMakes));
  EXPECT_THAT(refusal_of(file(std::string(5000, 'x'))), HasSubstr("is longer than 4096 bytes: not a secret."));
  EXPECT_THAT(refusal({}, "10.0.0.1:29400", {"CAPSTAN_RDZV_SECRET="}),
              HasSubstr("launch: CAPSTAN_RDZV_SECRET: is empty, and a secret has at least 32."));
  EXPECT_THAT(refusal({}, "10.0.0.1:29400", {"CAPSTAN_RDZV_SECRET=short"}),
              HasSubstr("launch: CAPSTAN_RDZV_SECRET: has 5 characters, and a secret at least 32."));
}

TEST_F(ElasticSecret, IsAFileAndOne) {
  EXPECT_THAT(refusal_of("absent"),
              HasSubstr("launch: --rdzv-secret-file 'absent': cannot be read: No such file or directory."));
  EXPECT_THAT(refusal_of("."), HasSubstr("launch: --rdzv-secret-file '.': is not a file."));
  ASSERT_EQ(mkfifo((folder_ / "pipe").c_str(), 0600), 0);
  EXPECT_THAT(refusal_of("pipe"), HasSubstr("launch: --rdzv-secret-file 'pipe': is not a file."));
  EXPECT_THAT(refusal({"--rdzv-secret-file", file(kSecret)}, "10.0.0.1:29400", {"CAPSTAN_RDZV_SECRET=x" + kSecret}),
              HasSubstr("launch: --rdzv-secret-file and CAPSTAN_RDZV_SECRET hold two secrets. Give one."));
  EXPECT_THAT(refusal({"--rdzv-secret-file", file(kSecret)}, "10.0.0.1:29400", {"CAPSTAN_RDZV_SECRET=" + kSecret}),
              HasSubstr("absent.json"));
}

TEST_F(ElasticSecret, IsOfLaunchersThatAreNamedOnce) {
  EXPECT_THAT(refusal({"--rdzv-secret-file", file(kSecret)}, "127.0.0.1:29400,127.0.0.1:29401,localhost:29400"),
              HasSubstr("launch: --rdzv: '127.0.0.1:29400' and 'localhost:29400' are one place, 127.0.0.1:29400. Name "
                        "each launcher once."));
  const ProcessResult result = run_capstan(folder_, {"launch", "--elastic", "1:2", "-n", "1", "--rdzv-secret-file", "s",
                                                     "train", "--config", "absent.json"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("launch: --rdzv-secret-file has no effect without --rdzv."));
}

}  // namespace
}  // namespace capstan::cli
