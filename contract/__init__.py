"""Plain data that every part agrees on: operations, outcomes, errors, snapshots, profiles."""
