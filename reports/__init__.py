"""What people look at: pages, charts, videos, tables and TensorBoard, made of what runs wrote."""
