/* What follows the two attentions in a layer, forward and backward, in tiles that stay in the cache:
 *
 *     s = LN(x + mean_s W_s), c = LN(x + mean_c W_c), f = LN(relu([s c] W_f + b)),
 *     out = LN(f + relu(f W_1) W_2).
 *
 * Included by _kernels.c after _kernels_body.c; learn2branch/combine.py has it in plain torch, which
 * defines the result. Nodes come in chunks, each with gradients of the weights of its own.
 */

/* Where the weights begin; the vectors b, then gain and shift of s, c, f and out, follow W_2. */
struct NAME(layout) {
    long s, c, f, inner, outer, vectors, size;
};

static struct NAME(layout) NAME(lay_out)(const long d, const long all, const long inner)
{
    struct NAME(layout) at = {0, all * d, 2 * all * d, 0, 0, 0, 0};
    at.inner = at.f + 2 * d * d;
    at.outer = at.inner + d * inner;
    at.vectors = at.outer + inner * d;
    at.size = at.vectors + 9 * d;
    return at;
}

/* z += residual; out = gain * normalised(z) + shift; `moments` gets mean and inverse deviation. */
INLINE void NAME(norm)(const long rows, const long d, REAL *z, const long z_row,
                       const REAL *residual, const long residual_row, const REAL *gain, REAL *out,
                       const long out_row, REAL *moments)
{
    const REAL *shift = gain + d;
    for (long r = 0; r < rows; r++) {
        REAL *row = z + r * z_row;
        VEC sum = {0}, square = {0};
        for (long k = 0; k < d; k += LANES) {
            VEC v = LOAD(row + k);
            if (residual)
                v += LOAD(residual + r * residual_row + k);
            STORE(row + k) = v;
            sum += v;
        }
        const REAL mean = NAME(total)(sum) / d;
        for (long k = 0; k < d; k += LANES) {
            const VEC v = LOAD(row + k) - mean;
            square = FMA(v, v, square);
        }
        const REAL scale = 1 / (REAL)sqrt(NAME(total)(square) / d + (REAL)1e-5);
        for (long k = 0; k < d; k += LANES)
            STORE(out + r * out_row + k) =
                FMA((LOAD(row + k) - mean) * scale, LOAD(gain + k), LOAD(shift + k));
        moments[8 * r] = mean;
        moments[8 * r + 1] = scale;
    }
}

/* The same result again, from what was kept. */
INLINE void NAME(norm_again)(const long rows, const long d, const REAL *z, const long z_row,
                             const REAL *gain, const REAL *moments, REAL *out, const long out_row)
{
    for (long r = 0; r < rows; r++)
        for (long k = 0; k < d; k += LANES)
            STORE(out + r * out_row + k) =
                FMA((LOAD(z + r * z_row + k) - moments[8 * r]) * moments[8 * r + 1], LOAD(gain + k),
                    LOAD(gain + d + k));
}

INLINE void NAME(norm_backward)(const long rows, const long d, const REAL *grad,
                                const long grad_row, const REAL *z, const long z_row,
                                const REAL *gain, const REAL *moments, REAL *grad_gain,
                                REAL *grad_z, const long grad_z_row)
{
    for (long r = 0; r < rows; r++) {
        const REAL mean = moments[8 * r], scale = moments[8 * r + 1];
        const REAL *g = grad + r * grad_row, *row = z + r * z_row;
        VEC sum = {0}, along = {0};
        for (long k = 0; k < d; k += LANES) {
            const VEC hat = (LOAD(row + k) - mean) * scale, here = LOAD(g + k);
            const VEC inside = here * LOAD(gain + k);
            STORE(grad_gain + k) = FMA(here, hat, LOAD(grad_gain + k));
            STORE(grad_gain + d + k) = LOAD(grad_gain + d + k) + here;
            sum += inside;
            along = FMA(inside, hat, along);
        }
        const REAL first = NAME(total)(sum) / d, second = NAME(total)(along) / d;
        for (long k = 0; k < d; k += LANES) {
            const VEC hat = (LOAD(row + k) - mean) * scale;
            STORE(grad_z + r * grad_z_row + k) =
                (LOAD(g + k) * LOAD(gain + k) - first - hat * second) * scale;
        }
    }
}

/* C (rows, columns) = A B, or += with `add`; B is (depth, columns), row by row. */
static __attribute__((noinline)) void NAME(multiply)(const long rows, const long depth,
                                                     const long columns, const REAL *A,
                                                     const long a_row, const REAL *B, REAL *C,
                                                     const long c_row, const int add)
{
    if (add)
        NAME(product)(rows, depth, columns / PANEL, A, a_row, 1, B, columns, PANEL, C, c_row, PANEL, 1);
    else
        NAME(product)(rows, depth, columns / PANEL, A, a_row, 1, B, columns, PANEL, C, c_row, PANEL, 0);
}

/* C (depth, columns) += A^T B over the rows of a tile: the gradient of a weight. */
static __attribute__((noinline)) void NAME(correlate)(const long rows, const long depth,
                                                      const long columns, const REAL *A,
                                                      const long a_row, const REAL *B,
                                                      const long b_row, REAL *C)
{
    NAME(product)(depth, rows, columns / PANEL, A, 1, a_row, B, b_row, PANEL, C, columns, PANEL, 1);
}

/* Arrays: where chunks begin, inner width, x, the two means, weights; kept, moments, out. */
static void NAME(combine_forward)(long first, long last, const struct sizes s, void **a)
{
    const int64_t *pointers = a[0];
    const long d = s.width, all = s.heads * d, inner = *(const int64_t *)a[1];
    const long stride = 4 * d + inner + 16, joined_row = 2 * d + PANEL, fused_row = d + PANEL;
    const struct NAME(layout) at = NAME(lay_out)(d, all, inner);
    const REAL *x = a[2], *W = a[5], *bias = W + at.vectors;
    REAL *joined = malloc(TILE * (joined_row + fused_row) * sizeof(REAL));
    REAL *fused = joined + TILE * joined_row;
    for (long i = pointers[first]; i < pointers[last]; i += TILE) {
        const long left = pointers[last] - i, rows = left < TILE ? left : TILE;
        REAL *kept = (REAL *)a[6] + i * stride, *moments = (REAL *)a[7] + 8 * i;
        for (int k = 0; k < 2; k++) {
            const REAL *mean = (const REAL *)a[3 + k] + i * all;
            NAME(multiply)(rows, all, d, mean, all, W + (k ? at.c : at.s), kept + k * d, stride, 0);
            NAME(norm)(rows, d, kept + k * d, stride, x + i * d, d, bias + (1 + 2 * k) * d,
                       joined + k * d, joined_row, moments + 2 * k);
        }
        REAL *active = kept + 2 * d, *hidden = kept + 4 * d;
        NAME(multiply)(rows, 2 * d, d, joined, joined_row, W + at.f, active, stride, 0);
        for (long r = 0; r < rows; r++)
            for (long k = 0; k < d; k += LANES) {
                const VEC z = LOAD(active + r * stride + k) + LOAD(bias + k);
                STORE(active + r * stride + k) = NAME(select)(z <= 0, ALL(0), z);
            }
        NAME(norm)(rows, d, active, stride, NULL, 0, bias + 5 * d, fused, fused_row, moments + 4);
        NAME(multiply)(rows, d, inner, fused, fused_row, W + at.inner, hidden, stride, 0);
        for (long r = 0; r < rows; r++)
            for (long k = 0; k < inner; k += LANES) {
                const VEC z = LOAD(hidden + r * stride + k);
                STORE(hidden + r * stride + k) = NAME(select)(z <= 0, ALL(0), z);
            }
        NAME(multiply)(rows, inner, d, hidden, stride, W + at.outer, kept + 3 * d, stride, 0);
        NAME(norm)(rows, d, kept + 3 * d, stride, fused, fused_row, bias + 7 * d,
                   (REAL *)a[8] + i * d, d, moments + 6);
    }
    free(joined);
}

/* Arrays: as above up to moments, transposed weights, grad; gradients of x, the means, weights. */
static void NAME(combine_backward)(long first, long last, const struct sizes s, void **a)
{
    const int64_t *pointers = a[0];
    const long d = s.width, all = s.heads * d, inner = *(const int64_t *)a[1];
    const long stride = 4 * d + inner + 16, wide_row = inner + PANEL, joined_row = 2 * d + PANEL;
    const long row = d + PANEL, all_row = all + PANEL;
    const struct NAME(layout) at = NAME(lay_out)(d, all, inner);
    const REAL *bias = (const REAL *)a[5] + at.vectors, *T = a[8];
    REAL *memory = malloc(TILE * (wide_row + 2 * joined_row + 2 * row + all_row) * sizeof(REAL));
    REAL *wide = memory, *joined = wide + TILE * wide_row, *grad_joined = joined + TILE * joined_row;
    REAL *fused = grad_joined + TILE * joined_row, *grad_z = fused + TILE * row;
    REAL *copy = grad_z + TILE * row;
    for (long chunk = first; chunk < last; chunk++)
        for (long i = pointers[chunk]; i < pointers[chunk + 1]; i += TILE) {
            const long left = pointers[chunk + 1] - i, rows = left < TILE ? left : TILE;
            const REAL *kept = (const REAL *)a[6] + i * stride;
            const REAL *moments = (const REAL *)a[7] + 8 * i;
            const REAL *active = kept + 2 * d, *hidden = kept + 4 * d;
            REAL *grad_W = (REAL *)a[13] + chunk * at.size, *grad_bias = grad_W + at.vectors;
            NAME(norm_backward)(rows, d, (const REAL *)a[9] + i * d, d, kept + 3 * d, stride,
                                bias + 7 * d, moments + 6, grad_bias + 7 * d, grad_z, row);
            NAME(multiply)(rows, d, inner, grad_z, row, T + at.outer, wide, wide_row, 0);
            for (long r = 0; r < rows; r++)
                for (long k = 0; k < inner; k += LANES)
                    STORE(wide + r * wide_row + k) =
                        NAME(select)(LOAD(hidden + r * stride + k) <= 0, ALL(0),
                                     LOAD(wide + r * wide_row + k));
            NAME(correlate)(rows, inner, d, hidden, stride, grad_z, row, grad_W + at.outer);
            NAME(norm_again)(rows, d, active, stride, bias + 5 * d, moments + 4, fused, row);
            NAME(correlate)(rows, d, inner, fused, row, wide, wide_row, grad_W + at.inner);
            NAME(multiply)(rows, inner, d, wide, wide_row, T + at.inner, grad_z, row, 1);
            NAME(norm_backward)(rows, d, grad_z, row, active, stride, bias + 5 * d, moments + 4,
                                grad_bias + 5 * d, grad_z, row);
            for (long r = 0; r < rows; r++)
                for (long k = 0; k < d; k += LANES) {
                    const VEC grad = NAME(select)(LOAD(active + r * stride + k) <= 0, ALL(0),
                                                  LOAD(grad_z + r * row + k));
                    STORE(grad_z + r * row + k) = grad;
                    STORE(grad_bias + k) = LOAD(grad_bias + k) + grad;
                }
            for (int k = 0; k < 2; k++)
                NAME(norm_again)(rows, d, kept + k * d, stride, bias + (1 + 2 * k) * d,
                                 moments + 2 * k, joined + k * d, joined_row);
            NAME(correlate)(rows, 2 * d, d, joined, joined_row, grad_z, row, grad_W + at.f);
            NAME(multiply)(rows, d, 2 * d, grad_z, row, T + at.f, grad_joined, joined_row, 0);
            REAL *grad_x = (REAL *)a[10] + i * d;
            for (int k = 0; k < 2; k++) {
                const REAL *mean = (const REAL *)a[3 + k] + i * all;
                const long begin = k ? at.c : at.s;
                NAME(norm_backward)(rows, d, grad_joined + k * d, joined_row, kept + k * d, stride,
                                    bias + (1 + 2 * k) * d, moments + 2 * k,
                                    grad_bias + (1 + 2 * k) * d, grad_z, row);
                for (long r = 0; r < rows; r++) {
                    memcpy(copy + r * all_row, mean + r * all, all * sizeof(REAL));
                    for (long v = 0; v < d; v += LANES)
                        STORE(grad_x + r * d + v) = LOAD(grad_z + r * row + v)
                                                    + (k ? LOAD(grad_x + r * d + v) : ALL(0));
                }
                NAME(correlate)(rows, all, d, copy, all_row, grad_z, row, grad_W + begin);
                NAME(multiply)(rows, d, all, grad_z, row, T + begin, (REAL *)a[11 + k] + i * all, all,
                               0);
            }
        }
    free(memory);
}
