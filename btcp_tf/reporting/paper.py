"""Figures of the paper's Tables 1 and 2."""

PAPER = {
    "cifar10": {
        "mcp": (64.32, 84.23, 10.62),
        "mc_dropout": (78.62, 89.08, 9.02),
        "trust_score": (78.21, 88.47, 5.70),
        "ohem": (78.00, 85.71, 2.13),
        "tcp": (71.93, 85.60, 7.72),
        "btcp": (78.80, 89.09, 2.01),
    },
    "cifar100": {
        "mcp": (72.86, 85.67, 7.20),
        "mc_dropout": (75.78, 86.09, 4.68),
        "trust_score": (74.70, 84.17, 4.74),
        "ohem": (77.14, 87.17, 3.53),
        "tcp": (77.51, 86.28, 3.19),
        "btcp": (77.80, 88.07, 3.11),
    },
    "svhn_cropped": {
        "mcp": (61.26, 93.20, 8.66),
        "mc_dropout": (84.55, 92.85, 5.60),
        "trust_score": (85.35, 92.16, 3.74),
        "ohem": (80.27, 90.60, 1.16),
        "tcp": (83.86, 93.44, 2.41),
        "btcp": (87.97, 93.66, 0.67),
    },
    "mnist": {
        "mcp": (85.54, 97.13, 3.80),
        "mc_dropout": (89.33, 97.15, 2.26),
        "trust_score": (90.52, 97.52, 3.00),
        "ohem": (87.16, 97.29, 0.52),
        "tcp": (90.75, 97.83, 0.34),
        "btcp": (91.52, 97.33, 0.26),
    },
    "fashion_mnist": {
        "mcp": (60.63, 82.93, 7.87),
        "mc_dropout": (76.65, 87.04, 4.87),
        "trust_score": (78.16, 87.53, 4.64),
        "ohem": (80.78, 87.53, 2.78),
        "tcp": (65.16, 87.99, 3.93),
        "btcp": (81.09, 88.36, 0.20),
    },
}
"""The paper's table of failure prediction: data set -> method -> (BACC, AUC, FPR) in percent."""

PAPER_OOD = {
    ("cifar10", "svhn_cropped"): {
        "mcp": (43.97, 0.3652),
        "mc_dropout": (85.86, 0.5056),
        "trust_score": (87.82, 0.5919),
        "ohem": (99.80, 0.7056),
        "tcp": (99.64, 0.7190),
        "btcp": (99.83, 0.7239),
    },
    ("svhn_cropped", "cifar10"): {
        "mcp": (43.56, 0.3690),
        "mc_dropout": (74.28, 0.4927),
        "trust_score": (79.38, 0.5166),
        "ohem": (85.93, 0.6074),
        "tcp": (75.18, 0.5476),
        "btcp": (86.04, 0.5823),
    },
    ("mnist", "fashion_mnist"): {
        "mcp": (53.46, 0.2745),
        "mc_dropout": (92.48, 0.5147),
        "trust_score": (85.64, 0.4168),
        "ohem": (93.66, 0.5826),
        "tcp": (88.88, 0.5434),
        "btcp": (99.56, 0.8216),
    },
    ("fashion_mnist", "mnist"): {
        "mcp": (38.42, 0.2146),
        "mc_dropout": (46.09, 0.3488),
        "trust_score": (42.78, 0.3261),
        "ohem": (51.97, 0.4437),
        "tcp": (47.09, 0.4146),
        "btcp": (56.24, 0.4789),
    },
}
"""The paper's table of OOD detection: (data set, OOD set) -> method -> (ACC in percent, AU)."""
