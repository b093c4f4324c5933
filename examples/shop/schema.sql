-- The shop's own database. It knows nothing of Headwater.
CREATE TABLE customers (id bigint PRIMARY KEY, name text NOT NULL, country text NOT NULL);
CREATE TABLE products (
  id bigint PRIMARY KEY, name text NOT NULL, description text NOT NULL, category text NOT NULL, price numeric(10, 2) NOT NULL
);
CREATE TABLE stock (product_id bigint PRIMARY KEY, quantity bigint NOT NULL, reorder_at bigint NOT NULL);
CREATE TABLE orders (
  id bigint PRIMARY KEY, customer_id bigint NOT NULL, product_id bigint NOT NULL, quantity bigint NOT NULL,
  amount numeric(12, 2) NOT NULL, status text NOT NULL, ordered_at timestamptz NOT NULL
);
CREATE TABLE payments (
  id bigint PRIMARY KEY, order_id bigint NOT NULL, kind text NOT NULL, amount numeric(12, 2) NOT NULL, paid_at timestamptz NOT NULL
);
