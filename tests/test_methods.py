import numpy as np

from btcp_tf.methods import METHODS, mcp


def test_mcp_is_one_minus_the_largest_probability():
    probs = np.float32([[0.7, 0.2, 0.1], [1.0, 0.0, 0.0], [0.25, 0.5, 0.25]])
    np.testing.assert_allclose(mcp(probs), [0.3, 0.0, 0.5], rtol=1e-6)


def test_every_method_scores_or_trains():
    assert [name for name, method in METHODS.items() if method.trained] == ["tcp", "btcp"]
    assert METHODS["tcp"].gamma == 0.0
    assert METHODS["btcp"].gamma is None
    probs = np.random.default_rng(0).dirichlet(np.ones(4), 50)
    for method in METHODS.values():
        if method.score is not None:
            u = method.score(probs)
            assert u.shape == (50,) and (u >= 0).all() and (u <= 1).all()
