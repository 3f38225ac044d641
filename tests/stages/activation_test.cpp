// Gate and write-strength forms against values computed by hand, and at the ends of their ranges.
#include "kernels/reference/activation.h"

#include <gtest/gtest.h>

namespace deltarelay::reference {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

TEST(Activation, SigmoidAndSoftplusNeverOverflow) {
  EXPECT_DOUBLE_EQ(sigmoid(0.0), 0.5);
  EXPECT_DOUBLE_EQ(sigmoid(2.0) + sigmoid(-2.0), 1.0);
  EXPECT_EQ(sigmoid(1e4), 1.0);
  EXPECT_EQ(sigmoid(-1e4), 0.0);
  EXPECT_EQ(sigmoid(kInf), 1.0);
  EXPECT_EQ(sigmoid(-kInf), 0.0);
  EXPECT_DOUBLE_EQ(softplus(0.0), std::log(2.0));
  EXPECT_DOUBLE_EQ(softplus(3.0), std::log1p(std::exp(3.0)));
  EXPECT_DOUBLE_EQ(softplus(1e4), 1e4);
  EXPECT_EQ(softplus(-1e4), 0.0);
  EXPECT_EQ(softplus(kInf), kInf);
  EXPECT_TRUE(std::isnan(softplus(std::nan(""))));
}

TEST(Activation, LogAndLinearGates) {
  Gate gate;
  EXPECT_EQ(log_decay(gate, -3.0, 9.0), -3.0) << "the bias belongs to raw gates";
  EXPECT_EQ(log_decay(gate, -kInf, 0.0), -kInf);
  gate.form = GateForm::kLinear;
  EXPECT_DOUBLE_EQ(log_decay(gate, 0.25, 0.0), std::log(0.25));
  EXPECT_EQ(log_decay(gate, 0.0, 0.0), -kInf);
  EXPECT_EQ(log_decay(gate, 1.0, 0.0), 0.0);
  EXPECT_EQ(log_decay(gate, -0.5, 0.0), -kInf);
  EXPECT_TRUE(std::isnan(log_decay(gate, std::nan(""), 0.0)));
}

TEST(Activation, FloorRaisesWhatLiesUnderIt) {
  Gate gate;
  gate.floor = -5.0;
  EXPECT_EQ(log_decay(gate, -1000.0, 0.0), -5.0);
  EXPECT_EQ(log_decay(gate, -kInf, 0.0), -5.0);
  EXPECT_EQ(log_decay(gate, -4.0, 0.0), -4.0);
  EXPECT_TRUE(std::isnan(log_decay(gate, std::nan(""), 0.0)));
  gate.form = GateForm::kLinear;
  EXPECT_EQ(log_decay(gate, 0.0, 0.0), -5.0);
}

TEST(Activation, RawGates) {
  Gate gate;
  gate.form = GateForm::kRawSoftplus;
  gate.a = 2.0;
  EXPECT_DOUBLE_EQ(log_decay(gate, 0.25, 0.5), -2.0 * std::log1p(std::exp(0.75)));
  gate.form = GateForm::kRawBounded;
  gate.lower_bound = -5.0;
  EXPECT_DOUBLE_EQ(log_decay(gate, 0.25, 0.5), -5.0 / (1.0 + std::exp(-1.5)));
  EXPECT_EQ(log_decay(gate, 1e4, 0.0), -5.0);
  EXPECT_EQ(log_decay(gate, -1e4, 0.0), 0.0);
}

TEST(Activation, WriteStrengths) {
  EXPECT_EQ(write_strength(BetaForm::kValue, 0.75), 0.75);
  EXPECT_DOUBLE_EQ(write_strength(BetaForm::kLogit, 1.0), 1.0 / (1.0 + std::exp(-1.0)));
  EXPECT_DOUBLE_EQ(write_strength(BetaForm::kTwiceLogit, 1.0), 2.0 / (1.0 + std::exp(-1.0)));
}

}  // namespace
}  // namespace deltarelay::reference
