// The part of kernels_body.hpp that models of the Llama family add: RMSNorm, SwiGLU, rotary
// embedding. Included by kernels_body.hpp, hence no #pragma once and no namespace.

void rms_statistics(const float* x, float* rstd, std::int64_t rows, std::int64_t columns,
                    float epsilon) {
  const float count = static_cast<float>(columns);
  for (std::int64_t i = 0; i < rows; ++i, x += columns) {
    const float squares = sum_of(
        columns, SPILLWAY_LOOP(at) {
          const Floats v = at.load(x);
          return v * v;
        });
    rstd[i] = 1.0f / std::sqrt(squares / count + epsilon);
  }
}

void rms_apply(const float* x, const float* rstd, const float* weight, float* y, std::int64_t rows,
               std::int64_t columns) {
  for (std::int64_t i = 0; i < rows; ++i, x += columns, y += columns) {
    const float row_rstd = rstd[i];
    for_each(
        columns, SPILLWAY_LOOP(at) { at.store(y, at.load(x) * row_rstd * at.load(weight)); });
  }
}

// With xhat = x rstd and g = dy w:  dx = rstd (g - xhat mean(g xhat)).
void rms_backward(const float* y_gradient, const float* x, const float* rstd, const float* weight,
                  float* x_gradient, bool overwrite, float* weight_gradient, std::int64_t rows,
                  std::int64_t columns) {
  const float count = static_cast<float>(columns);
  for (std::int64_t i = 0; i < rows; ++i) {
    const float* dy = y_gradient + i * columns;
    const float* row = x + i * columns;
    float* dx = x_gradient + i * columns;
    const float r = rstd[i];
    const float mean_g_xhat =
        sum_of(
            columns,
            SPILLWAY_LOOP(at) { return at.load(dy) * at.load(weight) * (at.load(row) * r); }) /
        count;
    for_each(
        columns, SPILLWAY_LOOP(at) {
          const Floats g = at.load(dy), xhat = at.load(row) * r;
          const Floats change = (g * at.load(weight) - xhat * mean_g_xhat) * r;
          if (weight_gradient != nullptr)
            at.store(weight_gradient, at.load(weight_gradient) + g * xhat);
          at.store(dx, overwrite ? change : at.load(dx) + change);
        });
  }
}

void rms_weight_gradient(const float* y_gradient, const float* x, const float* rstd,
                         float* weight_gradient, std::int64_t rows, std::int64_t columns) {
  for (std::int64_t i = 0; i < rows; ++i, y_gradient += columns, x += columns) {
    const float r = rstd[i];
    for_each(
        columns, SPILLWAY_LOOP(at) {
          const Floats g = at.load(y_gradient), xhat = at.load(x) * r;
          at.store(weight_gradient, at.load(weight_gradient) + g * xhat);
        });
  }
}

// 1 / (1 + exp(-x)), and so never a denormal: -x is held below 80.
SPILLWAY_INLINE Floats sigmoid(const Floats& x) {
  const Floats limit = splat(80.0f);
  return 1.0f / (exponential_of(-x > limit ? limit : -x) + 1.0f);
}

void swiglu_forward(const float* gate_up, float* product, std::int64_t rows, std::int64_t columns) {
  for (std::int64_t i = 0; i < rows; ++i, gate_up += 2 * columns, product += columns) {
    const float* up = gate_up + columns;
    for_each(
        columns, SPILLWAY_LOOP(at) {
          const Floats gate = at.load(gate_up);
          at.store(product, gate * sigmoid(gate) * at.load(up));
        });
  }
}

// With s the sigmoid of the gate:  d(gate) = d up s (1 + gate (1 - s)),  d(up) = d gate s.
void swiglu_backward(const float* gate_up, float* gradient, std::int64_t rows,
                     std::int64_t columns) {
  for (std::int64_t i = 0; i < rows; ++i, gate_up += 2 * columns, gradient += 2 * columns) {
    const float* up = gate_up + columns;
    float* up_gradient = gradient + columns;
    for_each(
        columns, SPILLWAY_LOOP(at) {
          const Floats gate = at.load(gate_up), s = sigmoid(gate), d = at.load(up_gradient);
          at.store(gradient, d * at.load(up) * (s * (gate * (1.0f - s) + 1.0f)));
          at.store(up_gradient, d * (gate * s));
        });
  }
}

void rotate_heads(float* x, const float* cosines, const float* sines, std::int64_t rows,
                  std::int64_t heads, std::int64_t head_width, std::int64_t stride,
                  float direction) {
  const std::int64_t pairs = head_width / 2;
  for (std::int64_t i = 0; i < rows; ++i, x += stride, cosines += pairs, sines += pairs) {
    for (std::int64_t head = 0; head < heads; ++head) {
      float* first = x + head * head_width;
      float* second = first + pairs;
      for_each(
          pairs, SPILLWAY_LOOP(at) {
            const Floats a = at.load(first), b = at.load(second);
            const Floats cosine = at.load(cosines), sine = at.load(sines) * direction;
            at.store(first, a * cosine - b * sine);
            at.store(second, b * cosine + a * sine);
          });
    }
  }
}
