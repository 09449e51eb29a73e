UPDATE topic SET config = ? WHERE id = ? RETURNING id;
