/* codec_round: how the vector forms of i8_encode_row avoid most divisions.
 * Wanted is a = |x| / scale in f32, rounded half away from zero, and a <= 127.x. The
 * product r of x and the reciprocal in f32 is wrong by three roundings (reciprocal,
 * product, and the division that it stands for): |r - a| <= 3.01 * 2^-24 * 128 < 2^-15.
 * So where r is nearer than 0.5 - 2^-15 to a whole number, a rounds to the same one; a
 * block with another r is divided. The reciprocal is a normal number for every scale of
 * a row (<= FLT_MAX / 127) from CODEC_RECIPROCAL_MIN on, and scale is then precise enough
 * for a < 127.5: no clamp. */
#ifndef LQ_PROTO_CODEC_ROUND_H
#define LQ_PROTO_CODEC_ROUND_H

#define CODEC_ROUND 12582912.0f /* 1.5 * 2^23: adding it rounds to a whole number */
#define CODEC_SURE (0.5f - 0x1p-15f)
#define CODEC_RECIPROCAL_MIN 0x1p-100f

#endif
