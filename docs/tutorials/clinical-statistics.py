# %% [markdown]
# # Estimates and standard errors over sites
#
# Five registries of the RAND health insurance experiment (statsmodels, 20,190 person-years) may not share rows. What is
# the effect of cost sharing on visits to a doctor? Here the rows are in one process, split unevenly; on nodes the same
# questions are asked by `fedsolve federate glm` ([statistics over sites](../pooled-statistics)).

# %%
import matplotlib.pyplot as plt
import numpy as np
import statsmodels.api as sm

import fedsolve as fs

table = sm.datasets.randhie.load_pandas().data
order = np.random.default_rng(0).permutation(len(table))
cuts = np.cumsum([8000, 5000, 4000, 2500])
names = ("north", "east", "south", "west", "islands")
sites = {name: table.iloc[rows] for name, rows in zip(names, np.split(order, cuts), strict=True)}
found = fs.stats.describe(sites, "mdvis, lncoins, disea=0:60, physlm=categories")
print(found["mdvis"].mean, found["mdvis"].standard_deviation, found["disea"].quantile(0.5))

# %% [markdown]
# Visits are counts, so a Poisson model is the first choice. `lncoins` is the logarithm of the coinsurance rate plus 1,
# `disea` an index of chronic diseases.

# %%
terms = "center(lncoins) + idp + physlm + center(disea) + hlthf + hlthp"
poisson = fs.stats.glm(sites, "mdvis", terms, family="poisson")
poisson.summary(ratios=True)

# %% [markdown]
# Pearson's statistic per degree of freedom should be near 1. It is far larger: the standard errors above are too small.
# Robust errors, or a negative binomial model, take the variance into account:

# %%
robust = fs.stats.glm(sites, "mdvis", terms, family="poisson", errors="robust")
negative = fs.stats.glm(sites, "mdvis", terms, family="negative-binomial")
for name, fit in (("Poisson", poisson), ("robust", robust), ("negative binomial", negative)):
    low, high = np.exp(fit.intervals()[1])
    print(
        f"{name:18} rate ratio {np.exp(fit['center(lncoins)']):.3f} [{low:.3f}, {high:.3f}], AIC {fit.aic:,.0f}"
    )
negative.summary(ratios=True)

# %% [markdown]
# One unit of `lncoins` (a rate 2.7 times as high) goes with about 7 % fewer visits; the interval is more than twice as
# wide as the Poisson model said, and still excludes 1. AIC prefers the negative binomial model by far. The pooled table
# gives the same numbers:

# %%
design = sm.add_constant(
    table.assign(lncoins=table.lncoins - table.lncoins.mean(), disea=table.disea - table.disea.mean())[
        ["lncoins", "idp", "physlm", "disea", "hlthf", "hlthp"]
    ]
)
pooled = sm.GLM(table.mdvis, design, family=sm.families.Poisson()).fit(tol=1e-14)
print("largest difference of coefficients:", np.abs(poisson.coefficients - pooled.params.to_numpy()).max())
print("of standard errors:", np.abs(poisson.standard_errors - pooled.bse.to_numpy()).max())

# %% [markdown]
# ## Survival
#
# The Stanford heart transplant data (69 patients): days to death or censoring, and age. Three sites of 23 patients keep
# their own baseline hazards, so no time leaves a site.

# %%
heart = sm.datasets.heart.load_pandas().data
heart["older"] = np.where(heart.age >= 48, "48 and older", "younger")
hospitals = {name: heart.iloc[i::3] for i, name in enumerate(("A", "B", "C"))}
hazard = fs.stats.cox(hospitals, "survival", "censors", "age", min_rows=5)
hazard.summary(ratios=True)

# %% [markdown]
# Each year of age goes with about 5 % more hazard. A curve needs times: in bins of 90 days, of which sites
# join those with too few rows.

# %%
curves = fs.stats.kaplan_meier(hospitals, "survival", "censors", "older", interval=90, min_rows=5)
print(curves.summary())
curves.plot("days")
plt.show()

# %% [markdown]
# ## What is refused
#
# A site does not answer questions that single out rows, and leaves with a note while enough others remain:

# %%
for formula in ("mdvis ~ physlm + I(disea ** 40)", "mdvis ~ lncoins + idp + fmdee", "disea ~ C(mdvis)"):
    try:
        fit = fs.stats.glm(sites, formula, family="gaussian")
        print(formula, "->", "; ".join(fit.notes) or "no notes")
    except fs.InvalidInput as error:
        print(formula, "->", error)
