/* Projection of a shifted distribution onto the fixed support (gpu/MATH.md, section 2), one definition for host and device.
 *
 * Pure functions on one sample; the order of additions is fixed (ascending atom), so the same inputs give the same bits.
 * F32 throughout, no contraction. Bellemare, Dabney, Munos, "A distributional perspective on reinforcement learning",
 * ICML 2017, algorithm 1; with a mass on an atom kept whole. */
#ifndef FH_GPU_PROJECTION_H
#define FH_GPU_PROJECTION_H

#include "gpu/hd.h"

struct projection {
	int atoms;
	float v_min, v_max, dz; /* dz = (v_max - v_min)/(atoms - 1) */
};

FH_HD struct projection projection_make(int atoms, double v_min, double v_max)
{
	struct projection p;

	p.atoms = atoms;
	p.v_min = (float)v_min;
	p.v_max = (float)v_max;
	p.dz = (float)((v_max - v_min) / (double)(atoms - 1));
	return p;
}

/* Atom j's value. */
FH_HD float projection_atom(const struct projection *p, int j)
{
	return p->v_min + (float)j * p->dz;
}

/* Where atom j lands, in atoms from v_min: in [0, atoms - 1] whatever ret and discount are (NaN lands on 0). */
FH_HD float projection_place(const struct projection *p, int j, float ret, float discount)
{
	float tz = ret + discount * projection_atom(p, j), b, top = (float)(p->atoms - 1);

	tz = tz > p->v_min ? tz : p->v_min;
	tz = tz < p->v_max ? tz : p->v_max;
	b = (tz - p->v_min) / p->dz;
	b = b > 0.0f ? b : 0.0f;
	return b < top ? b : top;
}

/* m[i*stride] = the target distribution of one sample; p[j*stride] its next state's. m is written whole. */
FH_HD void projection_apply(const struct projection *p, const float *prob, int prob_stride, float ret, float discount,
			    float *m, int m_stride)
{
	int j;

	for (j = 0; j < p->atoms; j++)
		m[j * m_stride] = 0.0f;
	for (j = 0; j < p->atoms; j++) {
		float b = projection_place(p, j, ret, discount), mass = prob[j * prob_stride];
		int low = (int)b, high = low + 1 < p->atoms ? low + 1 : p->atoms - 1;
		float frac = b - (float)low;

		m[low * m_stride] += mass * (1.0f - frac);
		m[high * m_stride] += mass * frac;
	}
}

#endif
